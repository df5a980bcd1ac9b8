"""What is LSF's own of jobs, on a stand-in that really runs them.

What it shares with other queues: `tests/schedulers/test_queues`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import BackendError, UnreachableError
from shunter.schedulers.hpc.queries import NativeJob
from shunter.schedulers.lsf_scheduler.scheduler import LsfScheduler
from shunter.specs import AppDef, AppState, is_terminal
from tests.schedulers.shell_jobs import WAITS, ShellJobs, role


@pytest.fixture
def jobs(scheduler: LsfScheduler) -> Iterator[ShellJobs]:
    jobs = ShellJobs(scheduler)
    yield jobs
    jobs.end_all()


@pytest.mark.slow
def test_replicas_are_placed_by_the_hosts_of_the_job(jobs: ShellJobs) -> None:
    app_id = jobs.submit(role("echo $SHUNTER_REPLICA $TORCHX_RANK0_HOST", num_replicas=3, cpu=2))
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
    assert scheduler.wait_options([("1", False), ("2", False)]) == ["-w", "done(1) && done(2)", "-ti"]
    assert scheduler.wait_options([("3", True)]) == ["-w", "ended(3)"]
    assert scheduler.wait_options([("1", False), ("3", True)]) == ["-w", "done(1) && ended(3)", "-ti"]


def test_a_command_goes_to_the_host_of_the_replica(scheduler: LsfScheduler) -> None:
    native = NativeJob("1", state=AppState.RUNNING, hosts=["a", "b"])
    host = native.host_of(1)
    assert scheduler.enter_command(native, 1, host, ["ls", "a b"], tty=False)[-3:] == ["--", "b", "ls 'a b'"]
    assert native.host_of(5) == ""


def test_a_bjobs_without_json_is_too_old(scheduler: LsfScheduler, lsf: Path) -> None:
    (lsf.parent / "lsf-bin/bjobs").write_text(
        "#!/bin/sh\necho 'bjobs: Illegal option -- json' >&2; exit 255\n"
    )
    with pytest.raises(BackendError, match="Illegal option") as caught:
        scheduler.list()
    assert "Fix Pack 2" in caught.value.hint
    (check,) = scheduler.doctor({})
    assert (check.ok, check.hint) == (False, caught.value.hint)


@pytest.mark.parametrize(
    ("fields", "cfg", "ok", "text"),
    [
        ({"cpu": 8}, {}, True, "hosts of its queue could hold it, if empty"),
        ({"cpu": 16, "memory": 500_000, "gpu": 4}, {}, True, "hosts of its queue could hold it, if empty"),
        ({"cpu": 65}, {}, False, "no host of its queue has 65 slots; the largest, down1, has 64 slots"),
        ({"gpu": 5}, {"queue": "gpu"}, False, "the largest, gpu1, has 16 slots, 4 GPUs, 503.5G of memory"),
        ({"memory": 516_000}, {"queue": "gpu"}, False, "no host of its queue has 1 slot, 516,000 MiB; "),
        ({"memory": 515_600}, {"queue": "gpu"}, True, "hosts of its queue could hold it, if empty"),
        ({"memory": 500_000, "cpu": 17}, {}, None, "LSF does not say what all hosts have: no host"),
        ({"gpu": 2, "num_replicas": 2}, {"queue": "gpu"}, True, "hosts of its queue could hold it, if empty"),
        ({"gpu": 3, "num_replicas": 2}, {"queue": "gpu"}, False, "it needs 2 hosts with 1 slot, 3 GPUs, "),
        ({"gpu": 3, "num_replicas": 2}, {"array": True}, True, "hosts of its queue could hold it, if empty"),
        ({"cpu": 17}, {"queue": "gpu"}, False, "no host of its queue has 17 slots"),
        ({"gpu": 1}, {"gpu_mode": "gmodel=A"}, True, "could hold it, if empty; gpu_mode not compared"),
    ],
)  # fmt: skip
def test_hosts_are_compared_with_the_job(
    scheduler: LsfScheduler, fields: dict[str, Any], cfg: dict[str, Any], ok: bool | None, text: str
) -> None:
    info = scheduler.submit_dryrun(AppDef("job", [role("true", **fields)]), cfg)
    (check,) = scheduler.examine_job(info)
    assert (check.name, check.ok) == ("the job", ok), check
    assert text in check.text


def test_what_lsf_does_not_say_of_hosts_is_not_known(scheduler: LsfScheduler, lsf: Path) -> None:
    info = scheduler.submit_dryrun(AppDef("job", [role("true", gpu=5)]), {"queue": "gpu"})

    def found() -> tuple[bool | None, str]:
        (check,) = scheduler.examine_job(info)
        return check.ok, f"{check.text}. {check.hint}"

    assert found()[0] is False
    (lsf / "grows").touch()
    assert found()[0] is None
    assert "LSF's resource connector may add hosts that do." in found()[1]
    (lsf / "no-gpus").touch()
    assert found()[0] is None
    assert "LSF does not say what all hosts have" in found()[1]
    (lsf / "down").touch()
    assert found()[0] is None
    assert "it was not compared with the hosts: cannot ask for" in found()[1]


def test_doctor(scheduler: LsfScheduler) -> None:
    cluster, queues, shared = scheduler.doctor({})
    assert (cluster.ok, queues.ok, shared.name) == (True, True, "shared folder")
    _, queue, _ = scheduler.doctor({"queue": "gpu"})
    assert (queue.ok, queue.text) == (False, "the queue gpu is Closed:Active")
