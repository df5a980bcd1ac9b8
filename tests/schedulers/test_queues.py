"""The same jobs on LSF and on Grid Engine: arrays, waiting for others, chains, time limits, faults.

Grid Engine is real; LSF is a stand-in that really runs the jobs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import BackendError, ConfigError, UnreachableError
from shunter.schedulers.api import Dependency, DescribeAppResponse
from shunter.schedulers.hpc.scheduler import HpcScheduler
from shunter.schedulers.registry import get_scheduler_factories
from shunter.specs import AppState, is_terminal
from tests import backends, grid_engine
from tests.schedulers.lsf.conftest import stand_in
from tests.schedulers.shell_jobs import RESUMES, WAITS, ShellJobs, role

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class Queue(ShellJobs):
    """Jobs of one of the two, and what else differs in the tests.

    Args:
        scheduler: its scheduler.
        submits: the program that submits.
        cancels: the program that cancels.
        warned: options of a job that is warned after some seconds.
        killed: options of a job that is killed after some seconds.
    """

    def __init__(
        self,
        scheduler: HpcScheduler,
        submits: str,
        cancels: str,
        warned: dict[str, Any],
        killed: dict[str, Any],
    ) -> None:
        super().__init__(scheduler)
        self.submits, self.cancels, self.warned, self.killed = submits, cancels, warned, killed


@pytest.fixture(params=["lsf", "sge"])
def queue(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Queue]:
    if request.param == "lsf":
        variables = {**stand_in(tmp_path), "FAKE_LSF_MINUTE": "8"}
        own: tuple[Any, ...] = ("bsub", "bkill", {"time": "2", "grace_period": 60}, {"time": "1"})
    else:
        backends.need("sge")
        variables = grid_engine.shared_cluster(tmp_path_factory).environment
        warned, killed = {"time": "20", "grace_period": 10}, {"time": "3", "grace_period": 0}
        own = ("qsub", "qdel", warned, killed)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    scheduler = get_scheduler_factories()[request.param]("test")
    assert isinstance(scheduler, HpcScheduler)
    with closing(scheduler):
        jobs = Queue(scheduler, *own)
        yield jobs
        jobs.end_all()


def test_an_array_is_throttled_and_each_replica_tells_its_end(queue: Queue) -> None:
    script = f"{WAITS}; exit $((SHUNTER_REPLICA % 2))"
    app_id = queue.submit(role(script, num_replicas=4), array=True, max_running=2)
    queue.seen(app_id, lambda r: r.state == AppState.RUNNING)
    (native,) = queue.scheduler._observe_many([app_id])[app_id].native
    states = [replica.state for replica in native.replicas.values()]
    assert 1 <= states.count(AppState.RUNNING) <= 2
    assert AppState.PENDING in states
    Path(queue.scheduler.default_place().shared, "jobs", app_id, "work/go").touch()
    response = queue.end_of(app_id)
    assert response.state == AppState.FAILED
    assert [replica.exit_code for replica in response.to_status().replicas()] == [0, 1, 0, 1]
    assert [queue.lines(app_id, k) for k in range(4)] == [["first", "last"]] * 4


def test_single_replicas_of_an_array_are_cancelled(queue: Queue) -> None:
    app_id = queue.submit(role(WAITS, num_replicas=4), array=True, max_running=2)

    def states(response: DescribeAppResponse) -> list[AppState]:
        return [replica.state for replica in response.roles_statuses[0].replicas]

    first = states(queue.seen(app_id, lambda r: states(r).count(AppState.RUNNING) == 2))
    unwanted = [first.index(AppState.RUNNING), first.index(AppState.PENDING)]
    queue.scheduler.cancel_replicas(app_id, [("worker", k) for k in unwanted])
    queue.seen(app_id, lambda r: sorted(map(str, states(r))) == ["CANCELLED"] * 2 + ["RUNNING"] * 2)
    Path(queue.scheduler.default_place().shared, "jobs", app_id, "work/go").touch()
    response = queue.end_of(app_id)
    assert response.state == AppState.CANCELLED
    assert response.msg.startswith(f"worker/{min(unwanted)} and 1 more: cancelled by ")
    ends = {k: AppState.CANCELLED if k in unwanted else AppState.SUCCEEDED for k in range(4)}
    assert states(response) == list(ends.values())


def test_jobs_wait_for_success_or_for_any_end(queue: Queue) -> None:
    failing = queue.submit(WAITS + "; exit 3")
    good = queue.submit(WAITS)
    array = queue.submit(role("exit $SHUNTER_REPLICA", num_replicas=2), array=True)
    cancelled = queue.submit("sleep 600")
    chain = queue.submit("true", chain=2)
    any_end = [Dependency(array, True), Dependency(cancelled, True)]
    wait = [
        (AppState.SUCCEEDED, [Dependency(good, False), Dependency(failing, True)]),
        (AppState.SUCCEEDED, [Dependency(chain, False), *any_end]),
        (AppState.CANCELLED, [Dependency(failing, False), Dependency(good, True)]),
        (AppState.CANCELLED, [Dependency(array, False)]),
        (AppState.CANCELLED, [Dependency(cancelled, False)]),
    ]
    ids = [queue.submit("echo ran", after=tuple(dependencies)) for _, dependencies in wait]
    held = queue.seen(ids[0], lambda r: "held" in r.msg or "dependency" in r.msg)
    assert held.state == AppState.PENDING
    queue.scheduler.cancel(cancelled)
    for app_id in (good, failing):
        Path(queue.scheduler.default_place().shared, "jobs", app_id, "work/go").touch()
    found = {app_id: queue.end_of(app_id) for app_id in ids}
    assert [found[app_id].state for app_id in ids] == [state for state, _ in wait], found
    assert [queue.lines(app_id) for app_id in ids] == [["ran"], ["ran"], [], [], []]
    assert queue.end_of(failing).state == AppState.FAILED
    assert queue.end_of(cancelled).state == AppState.CANCELLED


def test_a_chain_goes_on_after_the_warning_of_the_time_limit(queue: Queue) -> None:
    app_id = queue.submit(RESUMES, chain=3, **queue.warned)
    then = queue.submit("echo then", after=(Dependency(app_id, False),))
    response = queue.end_of(app_id)
    assert response.state == AppState.SUCCEEDED, response
    assert queue.lines(app_id) == ["run 0", "warned", "run 1"]
    assert queue.end_of(then).state == AppState.SUCCEEDED


def test_the_time_limit_is_named(queue: Queue) -> None:
    script = 'trap "" TERM INT; while :; do sleep 1; done'
    app_id = queue.submit(script, **queue.killed)
    response = queue.end_of(app_id)
    assert response.state == AppState.FAILED
    assert "limit" in response.msg


def test_many_jobs_take_few_calls(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [queue.submit("sleep 600") for _ in range(6)]
    kind = type(queue.scheduler.commands(""))
    calls: list[str] = []
    run: Callable[..., Any] = kind.run
    monkeypatch.setattr(
        kind, "run", lambda self, command, **more: (calls.append(command[0]), run(self, command, **more))[1]
    )
    assert all(queue.scheduler.describe_many(ids).values())
    assert set(ids) <= {row.app_id for row in queue.scheduler.list()}
    assert queue.scheduler.cancel_many(ids) == dict.fromkeys(ids)
    assert calls.count(queue.cancels) == 1
    assert calls.count("bjobs") + calls.count("qstat") <= 4
    assert {queue.end_of(app_id).state for app_id in ids} == {AppState.CANCELLED}


def test_refusals_are_in_the_words_of_the_queue(queue: Queue, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="nope") as caught:
        queue.submit("true", queue="nope", shared_dir=str(tmp_path / "shared"))
    assert "list the queues" in caught.value.hint.replace("lists", "list")
    assert not isinstance(caught.value, UnreachableError)
    assert list((tmp_path / "shared/jobs").iterdir()) == []


def test_missing_programs_are_a_clear_error(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running = queue.submit("sleep 600")
    programs = tmp_path / "programs"
    programs.mkdir()
    tools = ("sh", "xargs", "id", "stat", "dirname", "mkdir", "mktemp", "tar", "mv", "rm", "chmod", "cat")
    for name in tools:
        (programs / name).symlink_to(shutil.which(name) or "")
    with monkeypatch.context() as changed:
        changed.setenv("PATH", str(programs))
        with pytest.raises(ConfigError, match=f"no program '{queue.submits}' here"):
            queue.submit("true", copy_env=[])
        queue.scheduler._query("").forget([running])
        with pytest.raises(ConfigError, match=r"there is no program '(bjobs|qstat)' here"):
            queue.scheduler.describe(running)
    queue.scheduler._query("").forget([running])
    assert not is_terminal(queue.seen(running, lambda _: True).state)


def test_a_failure_is_retried_by_its_class_and_the_end_is_told(queue: Queue, tmp_path: Path) -> None:
    """By the small job that waits for the end; `tests/schedulers/hpc/test_follow_up` has the rest."""
    told = tmp_path / "told"
    hungry = '[ "$SHUNTER_ATTEMPT" != 0 ] || { echo "MemoryError: no more" >&2; exit 1; }'
    cfg = {"notify": [f"cat >>{told}; echo >>{told}"]}
    first = queue.submit(role(hungry, memory=64), retry={"oom": "2:256M"}, **cfg)
    response = queue.end_of(first)
    assert (response.state, response.num_restarts) == (AppState.SUCCEEDED, 1), response
    second = queue.submit(role("echo up; sleep 300"), **cfg)
    queue.seen(second, lambda found: found.state == AppState.RUNNING)
    queue.scheduler.cancel(second)
    queue.end_of(second)
    folder = Path(queue.scheduler.default_place().shared, "jobs")
    for app_id in (first, second):
        settled = folder / app_id / "settled"
        queue.seen(app_id, lambda _, settled=settled: settled.exists())
    messages = [json.loads(line) for line in told.read_text().splitlines() if line]
    assert sorted((each["job"], each["state"]) for each in messages) == sorted(
        [(first, "SUCCEEDED"), (second, "CANCELLED")]
    )
    assert "restarted with 128 MB of memory" in (folder / first / "retries").read_text()
