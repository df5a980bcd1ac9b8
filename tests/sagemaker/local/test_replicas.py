"""What is known of each host: its own state, times and exit code, and who failed first."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from shunter.schedulers.responses import LogRange
from shunter.schedulers.sagemaker_local_scheduler.scheduler import create_scheduler

from .conftest import Bucket, until
from .test_spot import SPOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Jobs

import pytest

from .test_spot import drill

GROUPS = [
    {"InstanceGroupName": "left", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
    {"InstanceGroupName": "right", "InstanceType": "ml.r5.large", "InstanceCount": 2},
]


@pytest.fixture
def scheduler() -> Iterator[Any]:
    with closing(create_scheduler("test")) as made:
        yield made


def replicas(scheduler: Any, name: str) -> dict[str, Any]:
    described = scheduler.describe(name)
    return {
        f"{role.role}/{replica.id}": replica for role in described.roles_statuses for replica in role.replicas
    }


def facts(found: dict[str, Any]) -> dict[str, tuple[str, int | None, str]]:
    return {key: (each.state.name, each.exit_code, each.reason) for key, each in found.items()}


@pytest.mark.slow
def test_each_host_of_each_group_ends_separately(jobs: Jobs, mode: str, scheduler: Any) -> None:
    """One ends well, one fails, and takes the third one with it."""
    script = """
if HOST == 'algo-1':
    sys.exit(0)
if HOST == 'algo-3':
    while not os.path.exists(BASE + '/input/data/script/go'): time.sleep(0.02)
    sys.exit(7)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
print('up', flush=True)
time.sleep(600)
"""
    name = jobs.start(script, ResourceConfig={"InstanceGroups": GROUPS, "VolumeSizeInGB": 5})
    jobs.says(name, "up", "algo-2")
    until(lambda: replicas(scheduler, name)["left/0"].exit_code == 0)
    now = facts(replicas(scheduler, name))
    assert now == {
        "left/0": ("SUCCEEDED", 0, ""),
        "right/0": ("RUNNING", None, ""),
        "right/1": ("RUNNING", None, ""),
    }
    for code in jobs.folder.glob("code-*"):
        (code / "go").touch()
    ended = jobs.end(name)
    assert "exit code: 7, host: algo-3" in ended["FailureReason"]
    found = replicas(scheduler, name)
    assert facts(found) == {
        "left/0": ("SUCCEEDED", 0, ""),
        "right/0": ("CANCELLED", 143, "stopped because right/1 failed"),
        "right/1": ("FAILED", 7, "exit code 7"),
    }
    assert {key: each.hostname for key, each in found.items()} == {
        "left/0": "algo-1",
        "right/0": "algo-2",
        "right/1": "algo-3",
    }
    for each in found.values():
        assert each.started_at < each.ended_at
    assert found["left/0"].ended_at < found["right/1"].ended_at <= found["right/0"].ended_at


def test_hosts_that_fail_after_another_one_say_so(jobs: Jobs, processes: str, scheduler: Any) -> None:
    """By themselves, when they are asked to end."""
    script = """
if HOST == 'algo-1':
    while not os.path.exists(BASE + '/input/data/script/go'): time.sleep(0.02)
    sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
print('up', flush=True)
time.sleep(600)
"""
    name = jobs.start(script, hosts=2)
    jobs.says(name, "up", "algo-2")
    for code in jobs.folder.glob("code-*"):
        (code / "go").touch()
    jobs.end(name)
    assert list(facts(replicas(scheduler, name)).values()) == [
        ("FAILED", 3, "exit code 3"),
        ("CANCELLED", 4, "stopped because algo/0 failed"),
    ]


def test_hosts_wait_while_there_are_no_machines(
    jobs: Jobs, processes: str, bucket: Bucket, scheduler: Any
) -> None:
    """How they ended when the machines went says nothing of what they are now."""
    name = jobs.start("print('up', flush=True); time.sleep(600)", hosts=2, **SPOT)
    jobs.says(name, "up")
    assert drill(name, "--absence", "10m").returncode == 0
    until(lambda: scheduler.describe(name).num_restarts == 1)
    assert list(facts(replicas(scheduler, name)).values()) == [("PENDING", None, "")] * 2
    scheduler.cancel(name)
    assert jobs.end(name)["TrainingJobStatus"] == "Stopped"
    role = scheduler.describe(name).roles_statuses[0].role
    part = scheduler.log_part(name, role, 0, LogRange(100, is_complete=True))
    assert part.data.endswith(b"up\n")
    assert scheduler.log_part(name, role, 0, LogRange(100, start="0.0.0", is_complete=True)).data.endswith(
        b"up\n"
    )


def test_a_program_that_is_not_there_has_no_exit_code(jobs: Jobs, processes: str, scheduler: Any) -> None:
    request = jobs.request("", hosts=2)
    request["AlgorithmSpecification"]["ContainerEntrypoint"] = ["no-such-program"]
    jobs.sagemaker.create_training_job(**request)
    ended = jobs.end(request["TrainingJobName"])
    assert ended["FailureReason"].startswith(
        "AlgorithmError: could not be started: no-such-program: no such program"
    )
    found = facts(replicas(scheduler, request["TrainingJobName"]))
    assert {fact[:2] for fact in found.values()} == {("FAILED", None)}


@pytest.mark.slow
def test_a_program_that_ends_well_when_it_is_cancelled(jobs: Jobs, mode: str, scheduler: Any) -> None:
    script = """
def stop(*_):
    print('stopping', time.time(), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print('up', flush=True)
time.sleep(600)
"""
    name = jobs.start(script)
    jobs.says(name, "up")
    asked = time.time()
    scheduler.cancel(name)
    assert jobs.end(name)["TrainingJobStatus"] == "Stopped"
    heard = float(jobs.lines(name)[-1].split()[1])
    assert heard >= asked
    (replica,) = replicas(scheduler, name).values()
    assert (replica.state.name, replica.exit_code) == ("CANCELLED", 0)
