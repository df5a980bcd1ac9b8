"""Networks of hosts that are containers: one for all jobs of one host, and small ones that jobs wait for."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shunter.docker.engine import Engine, EngineError
from shunter.docker.networks import VARIABLE
from shunter.schedulers.sagemaker_local_scheduler.hosts import container_host
from shunter.schedulers.sagemaker_local_scheduler.hosts.container_host import (
    ISOLATED_NETWORK,
    LABEL,
    SHARED_NETWORK,
)
from shunter.schedulers.sagemaker_local_scheduler.hosts.host import PlatformFailure
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import hosts_of
from shunter.schedulers.sagemaker_local_scheduler.scheduler import create_scheduler
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.specs import AppState
from tests.toolkit.image import docker

from .conftest import leftovers, until

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
def test_isolated_jobs_of_one_host_share_a_network_that_leads_nowhere(jobs: Jobs) -> None:
    name = jobs.start(WAITS, EnableNetworkIsolation=True)
    jobs.says(name, "up")
    assert networks_of(name) == [ISOLATED_NETWORK]
    (facts,) = json.loads(docker("network", "inspect", ISOLATED_NETWORK).stdout)
    assert facts["Internal"]
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    jobs.end(name)


@pytest.mark.slow
def test_a_job_of_several_hosts_waits_for_addresses(jobs: Jobs, home: Path, one_network: None) -> None:
    first, second, third = jobs.start(WAITS, hosts=2), "", ""
    jobs.says(first, "up")
    second, third = jobs.start("print('up')", hosts=2), jobs.start("print('up')", hosts=2)

    def why(name: str) -> str:
        step = jobs.describe(name)["SecondaryStatusTransitions"][-1]
        return str(step["StatusMessage"]) if step["Status"] == "Starting" else ""

    for name in (second, third):
        until(lambda name=name: why(name).startswith("Waiting for a network: all addresses"))
    status = create_scheduler("test").describe(second)
    assert status is not None
    assert status.state == AppState.PENDING
    assert "Waiting for a network" in str(status.msg)
    assert all(r.reason.startswith("waiting for a network") for r in status.roles_statuses[0].replicas)
    jobs.sagemaker.stop_training_job(TrainingJobName=third)
    assert jobs.end(third)["TrainingJobStatus"] == "Stopped"
    jobs.sagemaker.stop_training_job(TrainingJobName=first)
    ended = jobs.end(second)
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    jobs.end(first)
    assert leftovers(home) == []


@pytest.mark.slow
def test_what_a_removed_job_has_left_on_the_daemon_is_collected(jobs: Jobs, home: Path) -> None:
    name = jobs.start(WAITS, hosts=2)
    for host in ("algo-1", "algo-2"):
        jobs.says(name, "up", host)
    job = TrainingJob.of(name)
    state: Any = job.read_state()
    for keeper in ("guard", "runner"):
        os.kill(state[keeper][0], 9)
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


def test_a_shared_network_that_is_gone_or_full_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    number = int.from_bytes(os.urandom(2), "big")
    monkeypatch.setenv(VARIABLE, str(ipaddress.ip_network((0x0AB00000 | number << 5, 27))))
    monkeypatch.setattr(container_host, "SHARED_NETWORK", f"ty-{os.urandom(6).hex()}")
    engine = Engine.from_env()
    request = {"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1}}
    made = container_host.Cluster(engine, str(tmp_path), request)
    made.join_network(hosts_of(request))
    first = made.network
    try:
        assert not made.renew_network(EngineError(404, "No such image: x"))
        engine.request("DELETE", f"/networks/{first}")
        assert made.renew_network(EngineError(404, f"network {first} not found"))
        second = made.network
        full = EngineError(403, "failed: no available IPv4 addresses on this network's address pools: x (y)")
        assert made.renew_network(full)
        assert len({first, second, made.network}) == 3
        with pytest.raises(PlatformFailure, match="all addresses"):
            made.renew_network(full)
    finally:
        for network in engine.request("GET", "/networks"):
            if network["Name"].startswith(container_host.SHARED_NETWORK):
                engine.request("DELETE", f"/networks/{network['Id']}")
        engine.close()
