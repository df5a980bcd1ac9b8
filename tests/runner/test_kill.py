"""Submissions whose process is killed with SIGKILL, at every point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shunter.errors import BackendError, UnreachableError
from shunter.runner import Runner
from shunter.runner.records import INTERRUPTED, JobRecord
from shunter.schedulers.api import DescribeAppResponse
from shunter.specs import AppDef, AppState
from tests.runner.fake_scheduler import FakeScheduler

ROOT = Path(__file__).parents[2]


def submit(home: Path, stage: str = "", name: str = "killed") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.runner.submit_child", name, stage],
        env={**os.environ, "SHUNTER_HOME": str(home)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("stage", "exists"), [("before-schedule", False), ("after-schedule", True), ("after-submitted", True)]
)
def test_killed_around_the_request(
    runner: Runner, fake: FakeScheduler, home: Path, stage: str, exists: bool
) -> None:
    child = submit(home, stage)
    assert child.returncode == -signal.SIGKILL, child.stderr
    (before,) = runner.history.rows()
    assert before.phase == ("submitted" if stage == "after-submitted" else "intent")
    (job,) = runner.jobs()
    if exists:
        assert (job.phase, job.state) == ("submitted", AppState.RUNNING)
        assert runner.resolve_handle("-") == job.handle
        runner.cancel(job.handle)
        status = runner.status(job.handle)
        assert status is not None
        assert status.state is AppState.CANCELLED
    else:
        assert (job.phase, job.state, job.msg) == ("refused", AppState.UNSUBMITTED, INTERRUPTED)
        status = runner.status(job.handle)
        assert status is not None
        assert (status.state, status.msg) == (AppState.UNSUBMITTED, INTERRUPTED)


@pytest.mark.slow
@pytest.mark.timeout(240)  # some hundred processes, two at a time
def test_killed_at_every_statement_of_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = submit(tmp_path / "whole", "sql:100000")
    assert whole.returncode == 0, whole.stderr
    homes = [tmp_path / str(number) for number in range(1, 121)]
    with ThreadPoolExecutor(2) as pool:
        killed = 0
        for start in range(0, len(homes), 4):
            batch = range(start, start + 4)
            results = list(pool.map(lambda n: submit(homes[n], f"sql:{n + 1}"), batch))
            for number, result in zip(batch, results, strict=True):
                killed += result.returncode == -signal.SIGKILL
                assert result.returncode in (0, -signal.SIGKILL), result.stderr
                check_recovery(homes[number], monkeypatch, ended_well=result.returncode == 0)
            if all(result.returncode == 0 for result in results):
                break
    assert killed >= 12  # set-up, migration, intent, submitted


def check_recovery(home: Path, monkeypatch: pytest.MonkeyPatch, *, ended_well: bool) -> None:
    """After a kill each job that exists has its row, each row says what is so, and work goes on."""
    monkeypatch.setenv("SHUNTER_HOME", str(home))
    with Runner("sess", {"fake": FakeScheduler}) as runner:
        existing = {job.app_handle for job in runner.list("fake")}
        records = runner.jobs()
        assert {record.handle for record in records if record.phase == "submitted"} == existing
        assert all(record.msg == INTERRUPTED for record in records if record.phase != "submitted")
        assert len(existing) == 1 or not ended_well
        from shunter.specs import AppDef, Role

        again = runner.run(AppDef("again", [Role("r", "i", entrypoint="true")]))
        assert runner.resolve_handle(None) == again
        assert runner.history.rows()[0].handle == again


def test_a_submission_under_way_is_left_alone(runner: Runner, fake: FakeScheduler, home: Path) -> None:
    from shunter.system.identity import myself

    columns = {
        "scheduler": "fake",
        "session": "sess",
        "name": "n",
        "cfg": {},
        "app": {},
        "cwd": "/",
        "argv": [],
        "user": "u",
        "host": os.uname().nodename,
    }
    record = JobRecord(**columns, submitter=str(myself()), app_id="mine", handle="fake://sess/mine")
    runner.history.add_intent(record)
    (job,) = runner.jobs()
    assert (job.phase, job.state) == ("intent", AppState.UNSUBMITTED)
    status = runner.status("fake://sess/mine")
    assert status is not None
    assert status.msg == "its submission is in progress"
    assert "in progress" in status.msg


def test_a_dead_submission_that_cannot_be_looked_up_stays_open(
    runner: Runner, fake: FakeScheduler, home: Path
) -> None:
    assert submit(home, "after-schedule").returncode == -signal.SIGKILL
    fake.fail_describe = BackendError("down")
    (job,) = runner.jobs()
    assert job.phase == "intent"
    fake.fail_describe = None
    (job,) = runner.jobs()
    assert (job.phase, job.state) == ("submitted", AppState.RUNNING)


def test_a_refused_submission_is_no_job_while_its_scheduler_is_away(
    runner: Runner, fake: FakeScheduler, app: AppDef, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.fail_schedule = UnreachableError("down")
    away = DescribeAppResponse("x", AppState.UNREACHABLE, msg="down")
    monkeypatch.setattr(fake, "_look", lambda app_id: away)
    with pytest.raises(UnreachableError):
        runner.run(app)
    assert [record.phase for record in runner.history.rows()] == ["intent"]
    monkeypatch.setattr("shunter.runner.observation._is_dead", lambda record: True)
    assert [job.phase for job in runner.jobs()] == ["intent"]


@pytest.mark.parametrize(
    ("host", "age", "phase"),
    [("elsewhere", 60, "intent"), ("elsewhere", 90000, "refused"), ("", 60, "refused")],
)
def test_whose_submitter_is_gone(runner: Runner, host: str, age: float, phase: str) -> None:
    import time

    runner.history.add_intent(
        JobRecord(
            scheduler="fake",
            session="sess",
            name="n",
            cfg={},
            app={},
            cwd="/",
            argv=[],
            user="u",
            host=host or os.uname().nodename,
            submitter="1:1:another-boot",
            created_at=time.time() - age,
        )
    )
    assert [job.phase for job in runner.jobs()] == [phase]


@pytest.mark.slow
@pytest.mark.timeout(240)  # 8 s on two idle cores
def test_100_processes_at_once_lose_no_row(runner: Runner, home: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.runner.submit_child", f"job{number}"],
            env={**os.environ, "SHUNTER_HOME": str(home)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(100)
    ]
    outputs = [(child.communicate(), child.returncode) for child in children]
    assert all(code == 0 and not err for (_, err), code in outputs), [o for o in outputs if o[1]]
    handles = {out.strip() for (out, _), _ in outputs}
    assert len(handles) == 100
    rows = runner.history.rows()
    assert {row.handle for row in rows} == handles
    assert {row.name for row in rows} == {f"job{number}" for number in range(100)}
    assert {row.phase for row in rows} == {"submitted"}
    assert len({row.key for row in rows}) == 100
