"""What Grid Engine says, as it was recorded from 8.1.9, and what follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.schedulers.sge_scheduler import observe, reasons
from shunter.specs import AppState

RECORDED = Path(__file__).with_name("recorded")
WAITING = {AppState.PENDING, AppState.SUSPENDED, AppState.UNKNOWN, AppState.RUNNING}


def recorded(name: str) -> str:
    return (RECORDED / name).read_text()


def test_a_recorded_queue() -> None:
    parts = observe.jobs_from_queue(recorded("queue.xml"))
    jobs = observe.with_details(parts, observe.parse_details(recorded("details.xml")))
    assert {number: (job.app_id, job.state, job.native_state) for number, job in jobs.items()} == {
        "18": ("long-name", AppState.PENDING, "Eqw"),
        "23": ("a1", AppState.RUNNING, "r"),
        "24": ("gang", AppState.RUNNING, "r"),
        "26": ("arr2", AppState.RUNNING, "r"),
        "27": ("bad", AppState.PENDING, "Eqw"),
    }
    assert jobs["23"].hosts == ["n2"]
    assert jobs["23"].submitted_at is not None
    states = {task: (replica.state, *replica.hosts) for task, replica in jobs["26"].replicas.items()}
    assert states == {
        0: (AppState.RUNNING, "n2"),
        1: (AppState.RUNNING, "n1"),
        2: (AppState.PENDING,),
        3: (AppState.PENDING,),
    }
    assert jobs["27"].reason == (
        'Eqw: it could not be started: can\'t open output file "/none/x": No such file or directory '
        "(once the cause is fixed: qmod -cj 27)"
    )


def test_recorded_accounting() -> None:
    jobs = observe.jobs_from_accounting(recorded("accounting.txt"))
    ends = {number: (job.state, job.exit_code, job.reason) for number, job in jobs.items()}
    assert ends["7"] == (AppState.FAILED, 1, "")
    assert ends["8"] == (AppState.SUCCEEDED, 0, "")
    assert ends["1"] == (AppState.FAILED, 137, "killed by SIGKILL")
    assert ends["6"] == (AppState.FAILED, 100, "Grid Engine: application error returned")
    assert ends["2"][0] == AppState.FAILED
    assert ends["2"][2].startswith("stopped at its limit: ")
    assert "h_rt" in ends["2"][2]
    assert "5" not in jobs  # it was rescheduled each time, so its end is not there
    assert sorted(jobs["12"].replicas) == [0, 1]


def test_a_job_that_ran_again_has_restarts() -> None:
    text = recorded("accounting.txt")
    block = next(part for part in text.split("=" * 62) if "jobnumber    7 " in part)
    again = block.replace("failed       0 ", "failed       25  : rescheduling ")
    (job,) = observe.jobs_from_accounting(f"{'=' * 62}{again}{'=' * 62}{block}").values()
    assert (job.restarts, job.exit_code) == (1, 1)
    other = block.replace("hostname     n2", "hostname     n1").replace("exit_status  1 ", "exit_status  0 ")
    (job,) = observe.jobs_from_accounting(f"{'=' * 62}{other}{'=' * 62}{block}").values()
    assert (job.restarts, job.exit_code, job.hosts) == (0, 1, ["n2"])  # part of a parallel job


@pytest.mark.parametrize(
    ("letters", "state"),
    [
        ("r", AppState.RUNNING),
        ("t", AppState.RUNNING),
        ("Rr", AppState.RUNNING),
        ("dr", AppState.RUNNING),
        ("hr", AppState.RUNNING),
        ("hRwq", AppState.PENDING),
        ("qw", AppState.PENDING),
        ("hqw", AppState.PENDING),
        ("Eqw", AppState.PENDING),
        ("s", AppState.SUSPENDED),
        ("S", AppState.SUSPENDED),
        ("X", AppState.UNKNOWN),
        ("", AppState.UNKNOWN),
    ],
)
def test_states(letters: str, state: AppState) -> None:
    assert reasons.state_of(letters) == state


@given(st.text(max_size=4))
def test_no_letters_are_an_end(letters: str) -> None:
    assert reasons.state_of(letters) in WAITING


def test_unknown_jobs_are_no_answer() -> None:
    text = "<?xml version='1.0'?>\n<unknown_jobs >\n    <ST_name>99</ST_name>\n</unknown_jobs>\n"
    assert observe.parse_details(text) == {}
    with pytest.raises(ValueError, match="not XML"):
        observe.jobs_from_queue("error: commlib error")
