"""Scripts on several hosts that are processes of one machine: MPI and torchrun, several jobs at once."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tarfile
import uuid
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shunter import paths
from shunter._toolkit.host_names import loopback_addresses
from shunter.schedulers.sagemaker_local_scheduler.hosts.host_processes import PORTS, free_ports
from tests.backends import need
from tests.forked_command import run_shunter

from .conftest import until

if TYPE_CHECKING:
    from .conftest import Jobs

pytestmark = pytest.mark.timeout(150)

# Open MPI's own library, called as a program in C would: adds up 1, 2, ... over all ranks.
RANKS = """
import ctypes, json, os, socket, time
lib = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
at = lambda name: ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(lib, name)))
lib.MPI_Init(None, None)
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
one, total = ctypes.c_int(rank + 1), ctypes.c_int(0)
lib.MPI_Allreduce(ctypes.byref(one), ctypes.byref(total), 1,
                  at("ompi_mpi_int"), at("ompi_mpi_op_sum"), at("ompi_mpi_comm_world"))
facts = {"total": total.value, "host": os.environ["SM_CURRENT_HOST"],
         "hosts": json.loads(os.environ["SM_HOSTS"]), "local": os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]}
with open(os.environ["SM_MODEL_DIR"] + f"/rank-{rank}", "w") as file:
    json.dump(facts, file)
if os.environ.get("WAIT"):
    os.write(1, f"up {rank}\\n".encode())
    time.sleep(600)
lib.MPI_Finalize()
"""
TORCH = """
import json, os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
with open(os.environ["SM_MODEL_DIR"] + f"/rank-{dist.get_rank()}", "w") as file:
    json.dump({"total": int(total), "host": os.environ["SM_CURRENT_HOST"]}, file)
dist.destroy_process_group()
"""
MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
TORCHRUN = {
    "sagemaker_torch_distributed_enabled": "true",
    "sagemaker_torch_distributed_processes_per_host": "1",
}


def distributed(jobs: Jobs, script: str, parameters: dict[str, str], **more: Any) -> dict[str, Any]:
    """A request that starts a script with the toolkit."""
    folder = jobs.folder / f"source-{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    (folder / "train.py").write_text(script)
    with tarfile.open(folder / "sourcedir.tar.gz", "w:gz") as archive:
        archive.add(folder / "train.py", "train.py")
    return jobs.request(
        "",
        hosts=2,
        HyperParameters={
            "sagemaker_program": '"train.py"',
            "sagemaker_submit_directory": json.dumps(str(folder / "sourcedir.tar.gz")),
            **parameters,
        },
        AlgorithmSpecification={"ContainerEntrypoint": [sys.executable, "-m", "shunter_toolkit", "train"]},
        **more,
    )


def hosts_of(name: str, count: int, mode: str = "processes") -> list[str]:
    """What the hosts of a job call each other: processes by addresses."""
    names = [f"algo-{number + 1}" for number in range(count)]
    if mode != "processes":
        return names
    folder = os.path.join(paths.state_dir(), "sagemaker", name)
    return list(loopback_addresses(folder, names).values())


def ranks(jobs: Jobs, name: str) -> list[dict[str, Any]]:
    files = jobs.artifact(name)
    return [json.loads(files[f"rank-{rank}"]) for rank in range(len(files))]


@pytest.mark.slow
def test_mpi_spans_process_hosts_in_two_jobs_at_once(jobs: Jobs, processes: str) -> None:
    need("mpi")
    names = []
    for _ in range(2):
        request = distributed(jobs, RANKS, MPI)
        jobs.sagemaker.create_training_job(**request)
        names.append(request["TrainingJobName"])
    for name in names:
        ended = jobs.end(name)
        assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
        hosts = hosts_of(name, 2)
        assert ranks(jobs, name) == [
            {"total": 10, "host": host, "hosts": hosts, "local": local} for host in hosts for local in "01"
        ]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "kill the supervisor"])
def test_nothing_of_mpi_outlives_its_job(jobs: Jobs, processes: str, home: Path, how: str) -> None:
    """Not what mpirun has started by way of sshd either."""
    need("mpi")
    request = distributed(jobs, RANKS, MPI, Environment={"WAIT": "1"})
    name = request["TrainingJobName"]
    jobs.sagemaker.create_training_job(**request)
    until(lambda: sum(">:up " in line for line in _all_lines(home, name)) == 4)
    assert len(_members(home, name)) > 4
    if how == "stop":
        jobs.sagemaker.stop_training_job(TrainingJobName=name)
    else:
        state = json.loads((home / "state/sagemaker" / name / "state.json").read_text())
        os.kill(state["supervisor"][0], 9)
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == ("Stopped" if how == "stop" else "Failed")
    until(lambda: not _members(home, name))


def _all_lines(home: Path, name: str) -> list[str]:
    logs = (home / "state/sagemaker" / name / "logs").rglob("*.log")
    return [line for path in logs for line in path.read_text().splitlines()]


def _members(home: Path, name: str) -> list[str]:
    """Processes that have anything of a job in their command or environment, or stand in its directory."""
    mark = f"{home}/state/sagemaker/{name}/work"
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            text += os.readlink(folder / "cwd").encode()
        except OSError:
            continue
        if mark.encode() in text:
            found.append(folder.name)
    return found


@pytest.mark.slow
def test_torchrun_spans_process_hosts_in_two_jobs_at_once(jobs: Jobs, processes: str) -> None:
    need("torch")
    names = []
    for _ in range(2):
        request = distributed(jobs, TORCH, TORCHRUN, Environment={"OMP_NUM_THREADS": "1"})
        jobs.sagemaker.create_training_job(**request)
        names.append(request["TrainingJobName"])
    for name in names:
        until(lambda name=name: jobs.describe(name)["TrainingJobStatus"] != "InProgress", 120)
        ended = jobs.describe(name)
        assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
        assert ranks(jobs, name) == [{"total": 3, "host": host} for host in hosts_of(name, 2)]


def path_without(folder: Path, *names: str) -> str:
    """A PATH on which all programs are but some."""
    places = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    kept = folder / "bin"
    kept.mkdir()
    for program in (path for place in reversed(places) for path in Path(place).glob("*")):
        if program.name not in names:
            (kept / program.name).unlink(missing_ok=True)
            (kept / program.name).symlink_to(program)
    return str(kept)


@pytest.mark.slow
def test_mpi_that_cannot_be_is_refused_before_the_start(
    jobs: Jobs, processes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_without(tmp_path, "mpirun")
    assert shutil.which("sh", path=path)
    request = distributed(jobs, RANKS, MPI)
    monkeypatch.setenv("PATH", path)  # of the endpoint, which this process is
    with pytest.raises(jobs.sagemaker.exceptions.ClientError) as caught:
        jobs.sagemaker.create_training_job(**request)
    error = caught.value.response["Error"]
    assert error["Code"] == "ValidationException"
    assert "starts MPI on 2 hosts, which here are processes" in error["Message"]
    assert "mpirun (openmpi-bin)" in error["Message"]
    assert "Start a Docker daemon" in error["Message"]
    # one host needs no ssh, and is the toolkit's to judge
    alone = distributed(jobs, RANKS, {**MPI, "sagemaker_mpi_num_of_processes_per_host": "1"})
    alone["ResourceConfig"]["InstanceCount"] = 1
    jobs.sagemaker.create_training_job(**alone)
    assert "no mpirun" in jobs.end(alone["TrainingJobName"])["FailureReason"]
    # and from the command line, before anything is written
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(RANKS)
    line = ["run", "-s", "sagemaker_local", "train.script", "--script", "train.py", "--image", "none"]
    done = run_shunter(*line, "--num_replicas", "2", "--distribution", "mpi", cwd=project)
    assert done.returncode != 0
    assert "starts MPI on 2 hosts, which here are processes" in done.stderr
    assert "Traceback" not in done.stderr


def test_ports_of_a_job_are_free_and_different() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert set(ports) <= set(PORTS)
    with socket.create_server(("", ports[0])):
        assert ports[0] not in free_ports(len(PORTS) // 2)


def test_addresses_are_of_loopback_and_all_different() -> None:
    hosts = [f"algo-{number + 1}" for number in range(600)]
    addresses = loopback_addresses("/state/sagemaker/train", hosts)
    assert list(addresses) == hosts
    assert len(set(addresses.values())) == 600
    assert all(ip_address(address) in ip_network("127.128.0.0/9") for address in addresses.values())
    assert not set(addresses.values()) & set(loopback_addresses("/state/sagemaker/other", hosts).values())
