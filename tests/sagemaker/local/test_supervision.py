"""Jobs of `sagemaker_local` that are looked after: told at their end, found when they hang, sampled."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.sagemaker_local_scheduler.scheduler import SageMakerLocalScheduler, create_scheduler
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor import outbox
from shunter.specs import AppDef, AppState, Role
from tests.receiver import receiving

from .conftest import until

Scheduler = SageMakerLocalScheduler


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    with closing(create_scheduler("test")) as made:
        yield made


def job(script: str, image: str = "none") -> AppDef:
    return AppDef("looked-after", [Role("sh", image, entrypoint="sh", args=["-c", script])])


def line_of(app_id: str, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in Path(TrainingJob.of(app_id).path, "logs").rglob("*.log"))


@pytest.mark.parametrize(
    ("script", "cfg", "state"),
    [
        pytest.param("exit 0", {}, "SUCCEEDED", marks=pytest.mark.slow),
        ("echo boom; exit 3", {}, "FAILED"),
        pytest.param("sleep 300", {"max_run": 1}, "FAILED", marks=pytest.mark.slow),
        pytest.param("echo up; sleep 300", {"stops": True}, "CANCELLED", marks=pytest.mark.slow),
        ("echo up; sleep 300", {"killed": True}, "FAILED"),
    ],
    ids=["success", "failure", "time-limit", "stop", "supervisor-killed"],
)
def test_it_is_told_once_however_it_ends(
    processes: str, scheduler: Scheduler, script: str, cfg: dict[str, Any], state: str
) -> None:
    given = {key: value for key, value in cfg.items() if key not in ("stops", "killed")}
    with receiving() as receiver:
        app_id = scheduler.submit(job(script), {"notify": [receiver.url], **given})
        folder = Path(TrainingJob.of(app_id).path)
        if script.startswith("echo up"):
            until(lambda: line_of(app_id, b"up"))
        if cfg.get("stops"):
            scheduler.cancel(app_id)
        kept = TrainingJob.of(app_id).read_state()
        assert kept is not None
        if cfg.get("killed"):
            os.kill(kept["supervisor"][0], signal.SIGKILL)
            scheduler.wait(app_id, 60)
        [message] = receiver.wait_for(1)
        until((folder / outbox.SETTLED).exists)
        scheduler.describe(app_id)
        assert len(receiver.received) == 1
    assert message["state"] == state
    assert message["handle"] == f"sagemaker_local://test/{app_id}"
    if script.startswith("echo boom"):
        assert message["cause"]["exit_code"] == 3


def test_targets_and_secrets(processes: str, scheduler: Scheduler) -> None:
    with pytest.raises(ConfigError, match="notify"):
        scheduler.submit_dryrun(job("exit 0"), {"notify": ["http://"]})
    info = scheduler.submit_dryrun(job("exit 0"), {"notify": ["exit 0"], "notify_secret": "hush-hush-1"})
    assert "hush-hush-1" not in str(info.request)
    assert '"supervision"' in str(info.request)


PYTHON = "exec python3 -c 'import time; print(1, flush=True); time.sleep(300)'"


@pytest.mark.slow
def test_a_host_that_hangs_ends_the_job_and_leaves_its_stacks(processes: str, scheduler: Scheduler) -> None:
    app_id = scheduler.submit(job(PYTHON), {"hang_timeout": 1.0, "on_hang": "stop"})
    end = scheduler.wait(app_id, 50)
    assert end is not None
    assert end.state is AppState.FAILED
    assert "stopped because it hung: no output for 1 s" in end.msg
    assert line_of(app_id, b"shunter: no output for 1 s and no GPU activity; the stacks of its process")


@pytest.mark.slow
def test_a_container_that_hangs_is_marked_and_sampled(
    containers: str, image: str, scheduler: Scheduler
) -> None:
    app_id = scheduler.submit(job("echo up; sleep 300", image), {"hang_timeout": 2.0})

    def reason() -> str:
        response = scheduler.describe(app_id)
        assert response is not None
        return response.roles_statuses[0].replicas[0].reason

    until(lambda: reason().startswith("it hangs: no output for 2 s and no GPU activity"))
    until(lambda: bool(list(scheduler.details(app_id).usage(0.0))))
    sample = next(iter(scheduler.details(app_id).usage(0.0)))
    assert (sample.role, sample.replica) == ("sh", 0)
    assert sample.levels["memory_bytes"] > 0
    response = scheduler.describe(app_id)
    assert response is not None
    assert response.state is AppState.RUNNING
    scheduler.cancel(app_id)


@pytest.mark.slow
def test_processes_are_sampled(processes: str, scheduler: Scheduler) -> None:
    app_id = scheduler.submit(job("while :; do :; done"), {})
    until(lambda: bool(list(scheduler.details(app_id).usage(0.0))))
    sample = next(iter(scheduler.details(app_id).usage(0.0)))
    assert (sample.role, sample.replica, sample.attempt) == ("sh", 0, 0)
    assert sample.totals["cpu"] > 0
    scheduler.cancel(app_id)
