"""What is LSF's own of jobs, on a stand-in that really runs them.

What it shares with other queues: `tests/schedulers/test_queues`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.schedulers.shell_jobs import WAITS, ShellJobs, role
from trainyard.errors import BackendError, ConfigError, UnreachableError
from trainyard.schedulers.hpc.queries import NativeJob
from trainyard.schedulers.lsf.doctor import _version
from trainyard.schedulers.lsf.scheduler import LsfScheduler
from trainyard.specs import AppState, is_terminal


@pytest.fixture
def jobs(scheduler: LsfScheduler) -> Iterator[ShellJobs]:
    jobs = ShellJobs(scheduler)
    yield jobs
    jobs.end_all()


@pytest.mark.slow
def test_replicas_are_placed_by_the_hosts_of_the_job(jobs: ShellJobs) -> None:
    app_id = jobs.submit(role("echo $TRAINYARD_REPLICA $TORCHX_RANK0_HOST", num_replicas=3, cpu=2))
    assert jobs.end_of(app_id).state == AppState.SUCCEEDED
    assert [jobs.lines(app_id, k) for k in range(3)] == [[f"{k} host0"] for k in range(3)]


def test_a_job_outlives_the_absence_of_lsf(jobs: ShellJobs, lsf: Path) -> None:
    app_id = jobs.submit(WAITS)
    jobs.seen(app_id, lambda r: r.state == AppState.RUNNING)
    followed = iter(jobs.scheduler.log_iter(app_id, "worker", should_tail=True))
    assert next(followed) == "first\n"
    (lsf / "down").touch()
    gone = jobs.seen(app_id, lambda r: r.state != AppState.RUNNING)
    assert (gone.state, "LIM is down" in gone.msg) == (AppState.UNREACHABLE, True)
    with pytest.raises(UnreachableError):
        jobs.submit("true")
    assert isinstance(jobs.scheduler.cancel_many([app_id])[app_id], UnreachableError)
    Path(jobs.scheduler.default_place().shared, "jobs", app_id, "work/go").touch()
    assert jobs.seen(app_id, lambda r: is_terminal(r.state)).state == AppState.SUCCEEDED
    assert list(followed) == ["last\n"]
    (lsf / "down").unlink()
    assert jobs.end_of(app_id).state == AppState.SUCCEEDED


def test_what_bjobs_has_forgotten_is_known_by_its_records(jobs: ShellJobs, lsf: Path) -> None:
    app_id = jobs.submit("exit 4")
    jobs.end_of(app_id)
    (record,) = lsf.glob("*.0.json")
    record.unlink()
    jobs.scheduler._query("").forget([app_id])
    response = jobs.scheduler.describe(app_id)
    assert response is not None
    assert (response.state, response.msg) == (AppState.FAILED, "worker/0: exit code 4")


def test_a_condition_that_cannot_be_met_ends_the_job(scheduler: LsfScheduler) -> None:
    assert scheduler.dependency_options(["1", "2"], any_end=False) == ["-w", "done(1) && done(2)", "-ti"]
    assert scheduler.dependency_options(["3"], any_end=True) == ["-w", "ended(3)"]
    both = ["-w", "done(1)", "-ti", "-w", "ended(3)"]
    assert scheduler.merge_dependencies(both) == ["-w", "done(1) && ended(3)", "-ti"]


def test_a_command_goes_to_the_host_of_the_replica(scheduler: LsfScheduler) -> None:
    native = NativeJob("1", state=AppState.RUNNING, hosts=["a", "b"])
    assert scheduler.enter_command(native, 1, ["ls", "a b"], tty=False)[-3:] == ["--", "b", "ls 'a b'"]
    with pytest.raises(ConfigError, match="does not say on which host"):
        scheduler.enter_command(native, 5, ["ls"], tty=True)


@pytest.mark.parametrize(
    ("said", "ok"),
    [
        ("IBM Spectrum LSF Standard 10.1.0.13, Apr 15 2022", True),
        ("IBM Spectrum LSF 10.1.0.1, Nov 10 2016", None),
        ("Platform LSF Standard 9.1.3.0, Jul 04 2014", False),
        ("something else", None),
    ],
)
def test_versions(said: str, ok: bool | None) -> None:
    (check,) = _version(f"{said}\nMy cluster name is c1\nMy master name is h1")
    assert (check.ok, "c1 answers" in check.text) == (ok, True)


def test_a_bjobs_without_json_is_too_old(scheduler: LsfScheduler, lsf: Path) -> None:
    (lsf.parent / "lsf-bin/bjobs").write_text(
        "#!/bin/sh\necho 'bjobs: Illegal option -- json' >&2; exit 255\n"
    )
    with pytest.raises(BackendError, match="Illegal option") as caught:
        scheduler.list()
    assert "Fix Pack 2" in caught.value.hint


def test_doctor(scheduler: LsfScheduler) -> None:
    found = [(check.name, check.ok) for check in scheduler.doctor({})]
    assert found == [("LSF", True), ("queues", True)]
    (_, queue) = scheduler.doctor({"queue": "gpu"})
    assert (queue.ok, queue.text) == (False, "the queue gpu is Closed:Active")
