"""Networks of hosts that are containers: one for all jobs of one host, and small ones that jobs wait for."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shunter.docker.networks import VARIABLE
from shunter.schedulers.sagemaker_local_scheduler.hosts.container_host import (
    LABEL,
    SHARED_NETWORK,
)
from shunter.schedulers.sagemaker_local_scheduler.scheduler import create_scheduler
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from tests.toolkit.image import docker

from .conftest import until

if TYPE_CHECKING:
    from .conftest import Jobs

pytestmark = pytest.mark.usefixtures("containers")

WAITS = "print('up', flush=True); time.sleep(600)"
#: Says which address its own name has, listens there, and tries to reach another job.
NEIGHBOUR = """
import socket
listener = socket.create_server(('', 5000))
print('address', socket.gethostbyname(socket.gethostname()), HOST, flush=True)
path = BASE + '/input/data/script/other'
while not os.path.exists(path):
    time.sleep(0.05)
try:
    socket.create_connection((open(path).read(), 5000), 3)
    print('reached', flush=True)
except OSError as error:
    print('kept apart', flush=True)
"""


@pytest.fixture
def one_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for one network of several hosts, in a range of this test's own."""
    number = int.from_bytes(os.urandom(2), "big")
    monkeypatch.setenv(VARIABLE, str(ipaddress.ip_network((0x0AD00000 | number << 4, 28))))


def networks_of(job: str) -> list[str]:
    label = f"label={LABEL}={TrainingJob.of(job).path}"
    ids = docker("ps", "-aq", "--filter", label).stdout.split()
    facts = json.loads(docker("inspect", *ids).stdout)
    return sorted({name for each in facts for name in each["NetworkSettings"]["Networks"]})


@pytest.mark.slow
def test_jobs_of_one_host_share_a_network_and_not_each_other(jobs: Jobs) -> None:
    names = [jobs.start(NEIGHBOUR) for _ in range(2)]
    addresses = []
    for name in names:
        line = until(lambda name=name: jobs.streams(name) and jobs.lines(name))[0]
        assert line.split()[::2] == ["address", "algo-1"]
        addresses.append(line.split()[1])
        assert networks_of(name) == [SHARED_NETWORK]
    assert addresses[0] != addresses[1]
    for folder in jobs.folder.glob("code-*"):
        partial = folder / ".other"
        partial.write_text(addresses[0])
        partial.rename(folder / "other")
    for name in names:
        assert jobs.end(name)["TrainingJobStatus"] == "Completed", jobs.lines(name)
    assert jobs.lines(names[0])[1:] == ["reached"], "itself"
    assert jobs.lines(names[1])[1:] == ["kept apart"]


@pytest.mark.slow
def test_what_a_removed_job_has_left_on_the_daemon_is_collected(jobs: Jobs, home: Path) -> None:
    name = jobs.start(WAITS, hosts=2)
    for host in ("algo-1", "algo-2"):
        jobs.says(name, "up", host)
    job = TrainingJob.of(name)
    state: Any = job.read_state()
    os.kill(state["runner"][0], 9)
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
