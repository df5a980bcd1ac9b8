from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shunter.runner import Runner
from shunter.runner.history import History
from shunter.runner.jobsearch import REFUSED_STATE, JobFilter
from shunter.runner.records import JobRecord
from shunter.specs import AppDef, AppState, AppStatus
from shunter.system.identity import myself
from tests.runner.fake_scheduler import FakeScheduler
from tests.runner.test_history import add, intent

STATES = [*AppState.__members__, REFUSED_STATE]


def fill(history: History, number: int) -> list[JobRecord]:
    """Record jobs of all phases and states; return them, the latest first."""
    chance = random.Random(7)
    for i in range(number):
        name = chance.choice(["train", "eval", "tr*in"])
        if i % 11 == 0:
            history.refused(intent(history, name), "no room")
        elif i % 13 == 0:
            intent(history, name, submitter=str(myself()))
        else:
            scheduler = chance.choice(["fake", "other"])
            state = chance.choice(["SUCCEEDED", "FAILED", "CANCELLED", "UNKNOWN", "LATER"])
            key = intent(history, name, scheduler=scheduler)
            # submitted in another order than begun
            columns: dict[str, Any] = {"state": state, "submitted_at": 1000.0 + (i ^ 3)}
            history.submitted(key, f"{scheduler}://s/{name}-{i}", f"{name}-{i}", **columns)
    return history.rows()


def shown_state(record: JobRecord) -> str:
    return REFUSED_STATE if record.phase == "refused" else record.state.name


def is_wanted(record: JobRecord, wanted: JobFilter) -> bool:
    state = shown_state(record)
    if record.phase == "refused" and not wanted.refused and state not in (wanted.states or ()):
        return False
    return (
        wanted.scheduler in (None, record.scheduler)
        and (wanted.states is None or state in wanted.states)
        and (wanted.since is None or (record.submitted_at or record.created_at) >= wanted.since)
        and (not wanted.name or wanted.matches(record.name) or wanted.matches(record.app_id))
    )


@pytest.mark.slow
def test_the_jobs_that_fit_are_found_whatever_is_asked_for(runner: Runner) -> None:
    records = fill(runner.history, 80)
    states: list[set[str] | None] = [None, *({state} for state in STATES), {"FAILED", REFUSED_STATE}]
    names = [None, "train", "n-1", "t*-?", "tr[*]in*", "tr*in", "nosuch"]
    cases = itertools.product(states, [None, 1040.0], names, [False, True], [None, "fake"], [None, 3])
    for state, since, name, refused, scheduler, limit in cases:
        wanted = JobFilter(state, since, name, refused and not state, scheduler)
        expected = [record for record in records if is_wanted(record, wanted)]
        found, total = runner.search(wanted, limit)
        assert [record.seq for record in found] == [record.seq for record in expected[:limit]], vars(wanted)
        assert total == len(expected), vars(wanted)
        by_time = sorted(expected, key=lambda r: (r.submitted_at or r.created_at, r.seq), reverse=True)
        found, _ = runner.search(wanted, limit, by_time=True)
        assert [record.seq for record in found] == [record.seq for record in by_time[:limit]], vars(wanted)


def test_a_state_is_looked_up_before_jobs_are_chosen_by_it(
    runner: Runner, fake: FakeScheduler, app: AppDef
) -> None:
    handles = [runner.run(app, "fake") for _ in range(3)]
    ids = [handle.rpartition("/")[2] for handle in handles]
    fake.set(ids[0], state="SUCCEEDED")
    fake.set(ids[1], state="RUNNING")
    fake.set(ids[2], state="SUCCEEDED")
    for _ in range(2):  # found out now, and known from then on
        found, total = runner.search(JobFilter({"SUCCEEDED"}), 1)
        assert ([record.handle for record in found], total) == ([handles[2]], 2)
        assert [r.handle for r in runner.search(JobFilter({"RUNNING"}))[0]] == [handles[1]]


def test_only_jobs_of_the_page_are_asked_for(runner: Runner, fake: FakeScheduler, app: AppDef) -> None:
    ids = [runner.run(app, "fake").rpartition("/")[2] for _ in range(5)]
    fake.describe_calls.clear()
    runner.jobs(limit=2)
    assert [sorted(call) for call in fake.describe_calls] == [sorted(ids[3:])]


# ---- work, counted


def steps(history: History, work: Callable[[], object]) -> int:
    """Count the instructions of SQLite's machine."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection = history._writer
    assert connection is not None
    connection.set_progress_handler(count, 1)
    work()
    connection.set_progress_handler(None, 0)
    return counted


def test_a_long_history_costs_next_to_nothing(tmp_path: Path) -> None:
    short, long = (History(str(tmp_path / name)) for name in ("short.db", "long.db"))
    for history, number in ((short, 20), (long, 600)):
        for i in range(number):
            add(history, f"n-{i}", name=f"name{i % 5}")
        history.observe(
            [(f"fake://s/n-{i}", AppStatus(AppState.SUCCEEDED, ended_at=1.0)) for i in range(number)]
        )
    constant: list[Callable[[History], object]] = [
        lambda history: history.select(JobFilter(), 10),
        lambda history: history.select(JobFilter({"SUCCEEDED"}), 10, is_open=False),
        lambda history: history.select(JobFilter(), is_open=True),
        lambda history: history.intents(),
        lambda history: history.latest(),
        lambda history: history.find("fake://s/n-3"),
        lambda history: history.handles("n-3"),
        lambda history: history.handles("n-19", limit=11),
        lambda history: history.known("fake", ["n-3"]),
        lambda history: history.before(history.rows(1)[0]),
    ]
    for i, work in enumerate(constant):
        few, much = (steps(history, lambda: work(history)) for history in (short, long))  # noqa: B023
        assert much < 1.5 * few + 200, f"query {i}: {few} steps became {much}"
    short.close()
    long.close()
