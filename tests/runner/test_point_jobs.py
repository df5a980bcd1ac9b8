"""Sweeps whose points are jobs: seen and ended as one; no kill of what submits them loses or repeats any."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.errors import BackendError, ConfigError
from shunter.runner import Runner, get_runner
from shunter.specs import AppState
from shunter.specs.sweep_points import Point
from shunter.sweeps import point_jobs, repeat, run_sweep
from shunter.sweeps.grids import grid

COMPONENT = """\
from shunter.specs import AppDef, Role

def pair(n: int, place: str, fail: int = -1) -> AppDef:
    script = (
        f'echo n={n} k=$TORCHX_REPLICA_IDX | tee -a "{place}/seen"; '
        f'while [ -e "{place}/closed" ]; do sleep 0.02; done; [ {n} != {fail} ]'
    )
    return AppDef("pair", [Role("w", "", entrypoint="sh", args=["-c", script], num_replicas=2)])
"""
#: Submits what is missing of a sweep, and is killed before or after the scheduler gets the Nth of them.
CHILD = """\
import os, signal, sys
from shunter.runner import get_runner
from shunter.sweeps.point_jobs import submit_points
from shunter.schedulers.local_scheduler.scheduler import LocalScheduler

app_id, moment, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
schedule = LocalScheduler.schedule

def killed(self, info):
    global count
    count -= 1
    if not count and moment == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    found = schedule(self, info)
    if not count:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

LocalScheduler.schedule = killed
with get_runner() as runner:
    submit_points(runner, app_id)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "comp.py").write_text(COMPONENT)
    return tmp_path


@pytest.fixture
def runner(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    """A runner that leaves the submission of what has to wait to the test."""
    monkeypatch.setattr(point_jobs, "_feed_in_background", lambda handle: None)
    with get_runner() as runner:
        yield runner
        runner.cancel_many([record.handle for record in runner.jobs() if record.scheduler == "sweep"])


def points(place: Path, count: int, **fixed: object) -> list[Point]:
    return grid({"n": range(count)}, place=str(place), **fixed)


def app_id_of(handle: str) -> str:
    return handle.rpartition("/")[2]


def test_points_of_several_replicas_are_jobs_and_one_sweep(runner: Runner, place: Path) -> None:
    handle = run_sweep(runner, "comp.py:pair", points(place, 3, fail=1), "local_cwd", parallel=3)
    assert handle.startswith("sweep://")
    status = runner.wait(handle)
    assert (status.state, status.msg) == (AppState.FAILED, "1 of 3 points failed")
    names = [(role.role, [each.exit_code for each in role.replicas]) for role in status.roles]
    assert names == [("0.w", [0, 0]), ("1.w", [1, 1]), ("2.w", [0, 0])]
    assert list(runner.log_lines(handle, "2.w", 1)) == ["n=2 k=1\n"]
    assert runner.resolve_handle("-") == handle
    assert [record.handle for record in runner.jobs(refresh=False) if record.sweep is None] == [handle]
    from shunter.runner.jobsearch import JobFilter

    assert [record.handle for record in runner.search(JobFilter())[0]] == [handle]
    again = repeat(runner, handle, only_failed=True)
    assert [(r.role, r.exit_code) for r in runner.wait(again).replicas()] == [("0.w", 1), ("0.w", 1)]
    scheduler = runner.scheduler("sweep")
    assert scheduler.leftovers({}, 3600.0) == []
    old = scheduler.leftovers({}, 0.0)
    assert {item.app_id for item in old} == {app_id_of(handle), app_id_of(again)}
    scheduler.remove_leftovers({}, [item for item in old if item.app_id == app_id_of(again)])
    assert runner.status(again).state == AppState.FAILED
    jobs = [record.handle for record in runner.history.of_sweep(app_id_of(handle))]
    runner.delete(handle)
    assert runner.status(handle) is None
    assert all(runner.status(job) is None for job in jobs)


def test_limit_of_parallel_points_and_resuming_the_rest(runner: Runner, place: Path) -> None:
    (place / "closed").touch()
    handle = run_sweep(runner, "comp.py:pair", points(place, 3), "local_cwd", parallel=2)
    status = runner.status(handle)
    assert status.state in (AppState.PENDING, AppState.RUNNING)
    assert status.msg == (
        "1 of 3 points are not submitted yet, and no process is submitting them: "
        f"`shunter sweep --resume {app_id_of(handle)}`"
    )
    assert [each.reason for each in status.roles[2].replicas] == ["not submitted yet"] * 2
    (place / "closed").unlink()
    command = [sys.executable, "-m", "shunter", "sweep", "--resume", handle, "--wait"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert runner.status(handle).state == AppState.SUCCEEDED
    assert point_jobs.submit_points(runner, app_id_of(handle)) == 0  # there is nothing left to do
    assert len(runner.history.of_sweep(app_id_of(handle))) == 3


def test_a_cancelled_sweep_submits_nothing_more(runner: Runner, place: Path) -> None:
    (place / "closed").touch()
    handle = run_sweep(runner, "comp.py:pair", points(place, 3), "local_cwd", parallel=1)
    runner.cancel(handle)
    assert point_jobs.submit_points(runner, app_id_of(handle)) == 0
    status = runner.wait(handle)
    assert {replica.state for replica in status.replicas()} == {AppState.CANCELLED}
    assert status.state == AppState.CANCELLED
    assert len(runner.history.of_sweep(app_id_of(handle))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_loses_and_repeats_no_point(runner: Runner, place: Path, moment: str) -> None:
    handle = run_sweep(runner, "comp.py:pair", points(place, 4), "local_cwd", parallel=1)
    command = [sys.executable, "-c", CHILD, app_id_of(handle), moment, "2"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    point_jobs.submit_points(runner, app_id_of(handle))
    assert runner.wait(handle).state == AppState.SUCCEEDED
    seen = sorted((place / "seen").read_text().split("\n")[:-1])
    assert seen == [f"n={n} k={k}" for n in range(4) for k in range(2)]


def test_two_processes_do_not_submit_at_once(runner: Runner, place: Path) -> None:
    (place / "closed").touch()
    handle = run_sweep(runner, "comp.py:pair", points(place, 2), "local_cwd", parallel=1)
    with point_jobs.Sweep(runner, app_id_of(handle)).alone():
        assert "no process" not in runner.status(handle).msg
        with pytest.raises(BackendError, match="another process is submitting"):
            point_jobs.submit_points(runner, app_id_of(handle))


def test_who_looks_whether_points_are_being_submitted_stops_nobody(runner: Runner, place: Path) -> None:
    """Looking holds a shared lock for a moment."""
    handle = run_sweep(runner, "comp.py:pair", points(place, 3), "local_cwd", parallel=1)
    lock = os.open(os.path.join(point_jobs.Sweep(runner, app_id_of(handle)).folder, "lock"), os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    threading.Timer(0.2, os.close, [lock]).start()
    assert point_jobs.submit_points(runner, app_id_of(handle)) == 0
    assert len(runner.history.of_sweep(app_id_of(handle))) == 3


def test_the_rest_is_submitted_in_the_background(place: Path) -> None:
    with get_runner() as runner:
        handle = run_sweep(runner, "comp.py:pair", points(place, 3), "local_cwd", parallel=1)
    with get_runner() as runner:  # nothing of the process that started it is needed
        assert runner.wait(handle).state == AppState.SUCCEEDED
        assert len(runner.history.of_sweep(app_id_of(handle))) == 3


def test_points_may_need_different_things(runner: Runner, place: Path) -> None:
    Path("show.py").write_text("print('shown')")
    handle = run_sweep(runner, "utils.python", grid({"cpu": [1, 2]}, script="show.py"), "local_cwd")
    status = runner.wait(handle)
    seen = [(each.role, each.id, each.exit_code) for each in status.replicas()]
    assert seen == [("python", 0, 0), ("python", 1, 0)]
    assert list(runner.log_lines(handle, "python", 1)) == ["shown\n"]


def test_a_wrong_point_starts_nothing(runner: Runner, place: Path) -> None:
    wrong = [*points(place, 1), Point({"n": "x"}, {"n": "x", "place": str(place)})]
    with pytest.raises(ConfigError, match="n=x: "):
        run_sweep(runner, "comp.py:pair", wrong, "local_cwd")
    assert runner.jobs() == []
