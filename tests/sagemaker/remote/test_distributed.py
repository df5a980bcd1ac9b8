"""Ranks on one and on three instances, by torchrun and Open MPI, from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import backends
from tests.sagemaker.remote.conftest import Cloud
from tests.sagemaker.remote.mpi_image import make_mpi_image
from tests.toolkit.image import docker, require_docker

TORCH = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world, host = dist.get_rank(), dist.get_world_size(), os.environ["SM_CURRENT_HOST"]
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
os.write(1, f"rank {rank} of {world} on {host} total {int(total)}\\n".encode())
dist.destroy_process_group()
"""
MPI = """
import os
rank, world = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["OMPI_COMM_WORLD_SIZE"]
os.write(1, f"rank {rank} of {world} on {os.environ['SM_CURRENT_HOST']} total -\\n".encode())
"""

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("docker")]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    monkeypatch.chdir(directory)
    # where there are no containers the "image" is this machine, with the Python that has PyTorch
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return directory


@pytest.fixture
def containers(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The endpoint runs containers; gives an image with Open MPI."""
    from trainyard.schedulers.aws.sagemaker_local.launch import Settings
    from trainyard.schedulers.aws.sagemaker_local.server import Endpoint

    backends.need("docker")
    backends.need("mpi")
    require_docker()
    tag = f"trainyard-mpi:{uuid.uuid4().hex[:12]}"
    make_mpi_image(tag)
    with Endpoint(settings=Settings(docker="always", grace=5.0)) as endpoint:
        thread = threading.Thread(target=endpoint.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", endpoint.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", endpoint.url)
        yield tag
        endpoint.shutdown()
        thread.join()
    docker("rmi", "-f", tag, check=False)


def run(cloud: Cloud, kind: str, hosts: int, image: str) -> str:
    """Run a job of two ranks on each host, and return all that was said."""
    cfg = f"role={cloud.role},instance_type=ml.m5.large,output_path=s3://{cloud.bucket}/out"
    words = ["run", "-s", "aws_sagemaker", "-cfg", cfg, "--log", "train.script", "--script", "train.py"]
    words += ["--image", image, "--distribution", kind, "--nproc", "2", "--num_replicas", str(hosts)]
    line = [sys.executable, "-m", "trainyard", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=170)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    return said


@pytest.mark.parametrize("hosts", [1, 3])
def test_torchrun(cloud: Cloud, project: Path, hosts: int) -> None:
    backends.need("torch")
    (project / "train.py").write_text(TORCH)
    said = run(cloud, "torchrun", hosts, "image:1")
    world = 2 * hosts
    for rank in range(world):
        total = world * (world + 1) // 2
        assert f"rank {rank} of {world} on algo-{rank // 2 + 1} total {total}" in said


@pytest.mark.parametrize("hosts", [1, 3])
def test_mpi(cloud: Cloud, project: Path, containers: str, hosts: int) -> None:
    (project / "train.py").write_text(MPI)
    said = run(cloud, "mpi", hosts, containers)
    for rank in range(2 * hosts):
        assert f"rank {rank} of {2 * hosts} on algo-{rank // 2 + 1} total -" in said
