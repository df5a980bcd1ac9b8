"""Code without network, in real containers: what is let through runs, and what is refused would not have."""

from __future__ import annotations

import base64
import hashlib
import random
import socket
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.sagemaker_local_scheduler.scheduler import SageMakerLocalScheduler, create_scheduler
from shunter.specs.app import AppDef, Role
from shunter.specs.workspace import Workspace
from tests.backends import need

from .conftest import Jobs, until

WHEEL = "tinything-1.0-py3-none-any.whl"
PLAIN = "print('it runs')\n"
IMPORTING = "import tinything\nprint('value', tinything.VALUE)\n"


def make_wheel(folder: Path) -> None:
    """Write a wheel with one module, as its format has it."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "tinything.py": "VALUE = 42\n",
        "tinything-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n",
        "tinything-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    record += "tinything-1.0.dist-info/RECORD,,\n"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        for name, content in {**files, "tinything-1.0.dist-info/RECORD": record}.items():
            wheel.writestr(name, content)


@pytest.fixture
def index(tmp_path: Path, containers: str) -> Iterator[str]:
    """An index of packages on another machine: a network namespace, which containers with a network reach.

    Not this machine: containers on an internal network of Docker reach the addresses of their own host.
    """
    need("netns")
    make_wheel(tmp_path / "index/simple/tinything")
    space = f"ty-{uuid.uuid4().hex[:8]}"
    outer, subnet = f"{space}o", f"198.18.{random.SystemRandom().randrange(1, 255)}"
    here, there = f"{subnet}.1", f"{subnet}.2"
    ip("netns", "add", space)
    try:
        ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("addr", "add", f"{here}/30", "dev", outer)
        ip("link", "set", outer, "up")
        ip("-n", space, "addr", "add", f"{there}/30", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")
        line = ["ip", "netns", "exec", space, sys.executable, "-m", "http.server", "8000", "--bind", there]
        with subprocess.Popen(
            [*line, "--directory", str(tmp_path / "index")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as server:
            try:
                until(lambda: _answers(there))
                yield f"http://{there}:8000/simple"
            finally:
                server.kill()
    finally:
        ip("netns", "del", space)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 8000), timeout=1):
            return True
    except OSError:
        return False


@pytest.fixture
def scheduler(containers: str) -> Iterator[SageMakerLocalScheduler]:
    with closing(create_scheduler("test")) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    return directory


def prepared(
    scheduler: SageMakerLocalScheduler, project: Path, image: str, tmp_path: Path, **cfg: Any
) -> dict[str, Any]:
    """Return the request of a job, shipped."""
    app = AppDef("job", [Role("train", image, entrypoint="python", args=["train.py"])])
    options = {"output_path": str(tmp_path / "out"), **cfg}
    info = scheduler.submit_dryrun(app, options, Workspace({str(project): ""}))
    scheduler.ship(info)
    request: dict[str, Any] = info.request.job_def
    return request


@pytest.mark.slow
def test_plain_code_runs_without_network(
    jobs: Jobs, scheduler: SageMakerLocalScheduler, project: Path, tmp_path: Path
) -> None:
    (project / "train.py").write_text(PLAIN)
    request = prepared(scheduler, project, jobs.image, tmp_path, enable_network_isolation=True)
    jobs.sagemaker.create_training_job(**request)
    ended = jobs.end(request["TrainingJobName"])
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    assert "it runs" in jobs.lines(request["TrainingJobName"])


@pytest.mark.slow
def test_packages_of_an_index_are_refused_and_could_not_have_been_had(
    jobs: Jobs, index: str, scheduler: SageMakerLocalScheduler, project: Path, tmp_path: Path
) -> None:
    """The same request, with network and without: that it fails is why it is refused."""
    (project / "train.py").write_text(IMPORTING)
    (project / "requirements.txt").write_text("tinything\n")
    host = index.partition("://")[2].partition(":")[0]
    cfg = {
        "environment": {
            "PIP_INDEX_URL": index,
            "PIP_TRUSTED_HOST": host,
            "PIP_RETRIES": "0",
            "PIP_TIMEOUT": "30",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
        }
    }
    with pytest.raises(ConfigError, match=r"requirements\.txt asks for tinything"):
        prepared(scheduler, project, jobs.image, tmp_path, enable_network_isolation=True, **cfg)
    ends = {}
    for isolated in (False, True):
        request = prepared(scheduler, project, jobs.image, tmp_path, **cfg)
        request["EnableNetworkIsolation"] = isolated
        jobs.sagemaker.create_training_job(**request)
        ends[isolated] = jobs.end(request["TrainingJobName"])
    assert ends[False]["TrainingJobStatus"] == "Completed", ends[False].get("FailureReason")
    assert "value 42" in jobs.lines(ends[False]["TrainingJobName"])
    assert ends[True]["TrainingJobStatus"] == "Failed"
    assert "requirements.txt" in ends[True]["FailureReason"]


@pytest.mark.slow
def test_wheels_that_travel_with_the_code_are_installed_without_network(
    jobs: Jobs, scheduler: SageMakerLocalScheduler, project: Path, tmp_path: Path
) -> None:
    (project / "train.py").write_text(IMPORTING)
    (project / "requirements.txt").write_text("tinything\n")
    make_wheel(project / "wheels")
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/opt/ml/code/wheels"}
    cfg = {"enable_network_isolation": True, "environment": environment}
    request = prepared(scheduler, project, jobs.image, tmp_path, **cfg)
    jobs.sagemaker.create_training_job(**request)
    ended = jobs.end(request["TrainingJobName"])
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    assert "value 42" in jobs.lines(request["TrainingJobName"])
