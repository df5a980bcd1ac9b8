"""Networks of hosts that are containers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shunter.schedulers.sagemaker_local_scheduler.hosts.host_containers import LABEL
from shunter.schedulers.sagemaker_local_scheduler.scheduler import create_scheduler
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from tests.toolkit.image import docker

if TYPE_CHECKING:
    from .conftest import Jobs

pytestmark = pytest.mark.usefixtures("containers")

WAITS = "print('up', flush=True); time.sleep(600)"


@pytest.mark.slow
def test_what_a_removed_job_has_left_on_the_daemon_is_collected(jobs: Jobs, home: Path) -> None:
    name = jobs.start(WAITS, hosts=2)
    for host in ("algo-1", "algo-2"):
        jobs.says(name, "up", host)
    job = TrainingJob.of(name)
    state: Any = job.read_state()
    os.kill(state["supervisor"][0], 9)
    shutil.rmtree(job.path, ignore_errors=True)  # as by hand, and no process is left to clean up
    scheduler = create_scheduler("test")

    def ids() -> list[str]:
        label = f"label={LABEL}={job.path}"
        return (
            docker("ps", "-aq", "--filter", label).stdout.split()
            + docker("network", "ls", "-q", "--filter", label).stdout.split()
        )

    assert len(ids()) == 3
    found = [item for item in scheduler.leftovers({}, 0.0) if item.app_id == name]
    scheduler.remove_leftovers({}, found)
    assert ids() == []
