"""Ranks on one and on three instances, by torchrun and Open MPI, from the command line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import backends
from tests.sagemaker.remote.conftest import COMMAND_LINE, REGION, Cloud
from tests.sagemaker.remote.mpi_image import make_mpi_image
from tests.toolkit.image import temporary_image

TORCH = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, world, host = dist.get_rank(), dist.get_world_size(), os.environ["SM_CURRENT_HOST"]
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
os.write(1, f"rank {rank} of {world} on {host} total {int(total)}\\n".encode())
dist.destroy_process_group()
if rank == 0:
    open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w").write("torch")
"""
MPI = """
import os
rank, world = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["OMPI_COMM_WORLD_SIZE"]
os.write(1, f"rank {rank} of {world} on {os.environ['SM_CURRENT_HOST']} total -\\n".encode())
if rank == "0":
    open(os.path.join(os.environ["SM_MODEL_DIR"], "weights"), "w").write("mpi")
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
    from shunter.aws_endpoint.server import EndpointServer
    from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings

    backends.need("mpi")
    settings = Settings(docker="always", grace=5.0)
    with temporary_image(make_mpi_image) as image, EndpointServer(settings=settings) as endpoint:
        thread = threading.Thread(target=endpoint.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", endpoint.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH_LOGS", endpoint.url)
        yield image
        endpoint.shutdown()
        thread.join()


def run(cloud: Cloud, kind: str, hosts: int, image: str) -> str:
    """Run a job of two ranks on each host, and return all that was said."""
    cfg = f"role={cloud.role},instance_type=ml.m5.large,output_path=s3://{cloud.bucket}/out"
    words = ["run", "-s", "aws_sagemaker", "-cfg", cfg, "--log", "train.script", "--script", "train.py"]
    words += ["--image", image, "--distribution", kind, "--nproc", "2", "--num_replicas", str(hosts)]
    line = [sys.executable, "-c", COMMAND_LINE, *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=170)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    return said


def repeat_with_boto3(cloud: Cloud, name: str, folder: Path) -> tuple[str, list[str]]:
    """Start a job with the request of another, as somebody does who has boto3 and nothing of ours.

    Returns:
        All lines of its log streams, and the names in its model.
    """
    import boto3

    sagemaker, logs, s3 = (boto3.client(service, REGION) for service in ("sagemaker", "logs", "s3"))
    shown = sagemaker.describe_training_job(TrainingJobName=name)
    fields = sagemaker.meta.service_model.operation_model("CreateTrainingJob").input_shape.members
    again = f"boto3-{uuid.uuid4().hex[:10]}"
    request = {key: value for key, value in shown.items() if key in fields and key != "TrainingJobName"}
    sagemaker.create_training_job(TrainingJobName=again, **request)
    waiter = sagemaker.get_waiter("training_job_completed_or_stopped")
    waiter.wait(TrainingJobName=again, WaiterConfig={"Delay": 1, "MaxAttempts": 100})
    ended = sagemaker.describe_training_job(TrainingJobName=again)
    assert ended["TrainingJobStatus"] == "Completed"
    group = "/aws/sagemaker/TrainingJobs"
    streams = logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=f"{again}/")["logStreams"]
    lines = [
        event["message"]
        for stream in streams
        for event in logs.get_log_events(
            logGroupName=group, logStreamName=stream["logStreamName"], startFromHead=True
        )["events"]
    ]
    bucket, _, key = ended["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://").partition("/")
    archive = folder / f"{again}.tar.gz"
    s3.download_file(bucket, key, str(archive))
    with tarfile.open(archive) as model:
        return "\n".join(lines), model.getnames()


def job_of(said: str) -> str:
    """Return the name of the training job that the command line speaks of."""
    handle = next(word for word in said.split() if word.startswith("aws_sagemaker://"))
    return handle.rpartition("/")[2]


@pytest.mark.slow
def test_torchrun(cloud: Cloud, project: Path) -> None:
    """On two hosts: what torchrun does on one is the toolkit's, and tested there."""
    backends.need("torch")
    (project / "train.py").write_text(TORCH)
    said = run(cloud, "torchrun", 2, "image:1")
    world = 4
    lines, model = repeat_with_boto3(cloud, job_of(said), project)
    for rank in range(world):
        host = rf"127\.\d+\.\d+\.{rank // 2 + 1}"  # hosts are processes
        line = f"rank {rank} of {world} on {host} total {world * (world + 1) // 2}"
        assert re.search(line, said)
        assert re.search(line, lines)
    assert "weights" in model


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 3])
def test_mpi(cloud: Cloud, project: Path, containers: str, hosts: int) -> None:
    (project / "train.py").write_text(MPI)
    said = run(cloud, "mpi", hosts, containers)
    lines, model = repeat_with_boto3(cloud, job_of(said), project)
    for rank in range(2 * hosts):
        line = f"rank {rank} of {2 * hosts} on algo-{rank // 2 + 1} total -"
        assert line in said
        assert line in lines
    assert "weights" in model
