"""The same lines on other schedulers, each with its real backend: values, exceptions, death, arrays."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import uuid
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import shunter
from shunter import _toolkit
from shunter.errors import ConfigError
from shunter.specs import AppState
from tests import backends, grid_engine, ray_cluster
from tests.aws.moto_server import Moto, running_batch
from tests.functions import work
from tests.kubernetes.stub import Stub, container_cluster
from tests.sagemaker_endpoint import ROLE, running_endpoint
from tests.slurm_cluster import shared_cluster as shared_slurm
from tests.toolkit.image import docker


@pytest.fixture(scope="module")
def batch_server() -> Iterator[Moto]:
    with running_batch() as server:
        yield server


@pytest.fixture
def project(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a module, from which functions are submitted; the tests themselves do not travel."""
    (project / "lessons.py").write_text(Path(work.__file__).read_text())
    monkeypatch.syspath_prepend(str(project))
    return project


Options = dict[str, Any]


SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("local_docker", "sge", "kubernetes", "ray", "sagemaker_local", "aws_batch", "aws_sagemaker")
]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stub]:
    backends.need("lightkube")
    with container_cluster(tmp_path / "kubeconfig") as stub:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield stub


@pytest.fixture
def endpoints() -> Iterator[ExitStack]:
    """What is closed when a test ends."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["slurm", *SLOW])
def place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    endpoints: ExitStack,
) -> tuple[str, Options]:
    """A scheduler whose backend runs, and the options with which it takes small jobs."""
    name: str = request.param
    if name == "local_docker":
        return name, {"image": request.getfixturevalue("image")}
    if name == "kubernetes":
        request.getfixturevalue("cluster")
        return name, {"image": request.getfixturevalue("image"), "logged_results": 1}
    if name == "aws_batch":
        server = request.getfixturevalue("batch_server")
        for variable, value in server.environ().items():
            monkeypatch.setenv(variable, value)
        location = f"s3://{server.bucket}/code"
        return name, {"queue": server.queue, "image": server.image, "mem": "256M", "code_location": location}
    if name == "slurm":
        backends.need("slurm")
        cluster = shared_slurm(tmp_path_factory)
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        return name, {"cpu": 1, "mem": "100M"}
    if name == "sge":
        backends.need("sge")
        for variable, value in grid_engine.shared_cluster(tmp_path_factory).environment.items():
            monkeypatch.setenv(variable, value)
        return name, {"shared_dir": str(tmp_path / "shared")}
    if name == "ray":
        backends.need("ray")
        monkeypatch.setenv("RAY_ADDRESS", ray_cluster.shared_cluster(tmp_path_factory).address)
        return name, {}
    image = {"image": request.getfixturevalue("image")}
    if name == "aws_sagemaker":
        variables, options = endpoints.enter_context(running_endpoint(request.getfixturevalue("moto")))
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        return name, {**options, **image}
    return name, {"role": ROLE, "instance_type": "ml.m5.large", **image}


def test_functions_run_everywhere_alike(place, project):
    import lessons  # type: ignore[import-not-found]

    name, options = place
    with shunter.Executor(name, **options) as executor:
        futures = [
            executor.submit(lessons.double, 21),
            executor.submit(lambda: "by value"),
            executor.submit(lessons.fail, 7),
            executor.submit(lessons.die),
        ]
        results = executor.map(lessons.double, range(3))
        assert futures[0].result(100) == 42
        assert futures[1].result(100) == "by value"
        error = futures[2].exception(100)
        assert type(error).__name__ == "Unlucky"
        assert error.args == (7,)
        assert "in fail" in str(error.__cause__)
        death = futures[3].exception(100)
        assert isinstance(death, shunter.JobFailedError)
        assert "SIGKILL" in str(death) or "137" in str(death)
        assert list(results) == [0, 2, 4]
    assert shunter.job(futures[0].job.id).result(60) == 42


@pytest.mark.slow
@pytest.mark.parametrize("place", ["aws_batch"], indirect=True)
def test_a_result_that_another_has_written_is_not_read(place, project, batch_server, tmp_path):
    """Somebody who can write to the bucket can replace a result, but not seal it."""
    import lessons

    name, options = place
    with shunter.Executor(name, **options) as executor:
        futures = [executor.submit(lessons.double, x) for x in (21, 22)]
        assert [future.result(100) for future in futures] == [42, 44]
    bucket, s3 = batch_server.bucket, batch_server.client("s3")
    keys = [
        f"code/results/{future.job.handle.rpartition(':')[2]}/double/0/results.tar.gz" for future in futures
    ]
    # the sealed result of another job
    s3.copy_object(Bucket=bucket, Key=keys[0], CopySource={"Bucket": bucket, "Key": keys[1]})
    with pytest.raises(shunter.ResultError):
        shunter.job(futures[0].job.handle).result(10)
    # a pickle without a seal
    proof = tmp_path / "it was unpickled"
    bomb = pickle.dumps(Bomb(str(proof)))
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        member = tarfile.TarInfo("output/data/returned-0.pickle")
        member.size = len(bomb)
        archive.addfile(member, io.BytesIO(bomb))
    s3.put_object(Bucket=bucket, Key=keys[0], Body=raw.getvalue())
    with pytest.raises(shunter.ResultError):
        shunter.job(futures[0].job.handle).result(10)
    assert not proof.exists()


@pytest.fixture
def image_with_toolkit(batch_server) -> Iterator[str]:
    """An image in which the package shunter-toolkit is installed."""
    name = f"shunter-test-{uuid.uuid4().hex[:12]}"
    docker("create", "--name", name, batch_server.image, "true")
    try:
        docker("cp", str(Path(_toolkit.__file__).resolve().parent), f"{name}:/usr/lib/python3/dist-packages/")
        docker("commit", name, f"{name}:1")
    finally:
        docker("rm", "-f", name)
    yield f"{name}:1"
    docker("rmi", "-f", f"{name}:1", check=False)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["aws_batch"], indirect=True)
def test_functions_need_no_bucket_if_the_image_has_the_toolkit(place, project, image_with_toolkit):
    """Code and calls are in the request, and results come with the log."""
    (project / "repeating.py").write_text("def repeat(text, count):\n    return text * count\n")
    import repeating  # type: ignore[import-not-found]

    name, options = place
    del options["code_location"]
    options |= {"image": image_with_toolkit, "toolkit_in_image": True}
    with shunter.Executor(name, **options) as executor:
        one = executor.submit(repeating.repeat, "ab", 300_000)
        several = executor.map(repeating.repeat, ["a", "b"], [2, 3])
        assert one.result(100) == "ab" * 300_000
        assert list(several) == ["aa", "bbb"]
        too_large = executor.submit(os.urandom, 2 << 20)
        with pytest.raises(shunter.ResultError, match="too large"):
            too_large.result(100)
    (project / "large").write_bytes(os.urandom(30_000))
    with pytest.raises(ConfigError, match="AWS Batch takes 24576; nothing was submitted"):
        shunter.Executor(name, **options)


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["aws_batch", "aws_sagemaker"], indirect=True)
def test_a_call_that_is_cancelled_ends_its_job(place, project):
    import lessons

    name, options = place
    with shunter.Executor(name, **options) as executor:
        future = executor.submit(lessons.wait_for, "/never")
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result(100)
        job = future.job
    response = shunter.get_runner().wait(job.handle, timeout=100)
    assert response is not None
    assert response.state == AppState.CANCELLED
