"""A Docker daemon that goes away in the middle of a job: one of the tests' own."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shunter.docker.command import DockerCommand
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from tests.backends import need
from tests.schedulers.docker.test_daemon import Daemon, _end_containerd, copy_image

from .conftest import until
from .test_faults import state_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Jobs

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def daemon(image: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    need("docker")
    if os.geteuid() != 0 or not shutil.which("dockerd", path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
        pytest.skip("only root can start a daemon")
    with tempfile.TemporaryDirectory(prefix="tyd", ignore_cleanup_errors=True) as name:
        made = Daemon(Path(name))
        made.start("--live-restore=false")
        copy_image(image, made.host)
        monkeypatch.setenv("DOCKER_HOST", made.host)
        monkeypatch.setenv("SHUNTER_SAGEMAKER_PATIENCE_SECONDS", "2")
        yield made
        if made.process.poll() is None:
            made.stop(signal.SIGTERM)
        _end_containerd(Path(name))


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_whose_daemon_is_away_has_not_failed(
    jobs: Jobs, containers: str, daemon: Any, home: Path, signum: signal.Signals
) -> None:
    """It ends when a daemon says how its containers fared, and nothing is left of it then."""
    name = jobs.start("print('up', flush=True); time.sleep(600)", hosts=2)
    for host in ("algo-1", "algo-2"):
        jobs.says(name, "up", host)
    daemon.stop(signum)
    until(lambda: "daemon does not answer" in state_of(name)["msg"])
    assert jobs.describe(name)["TrainingJobStatus"] == "InProgress"
    daemon.start("--live-restore=false")
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Failed"
    for kind in ("container", "network"):
        path = f"{home}/state/sagemaker/{name}"
        assert DockerCommand().ids(kind, "shunter.sagemaker.job", path) == []
    assert not (home / "state/sagemaker" / name / "work").exists()


@pytest.mark.slow
def test_a_daemon_that_comes_back_is_waited_for(
    jobs: Jobs, containers: str, daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With live restore, as daemons are updated: the containers run on."""
    monkeypatch.setenv("SHUNTER_SAGEMAKER_PATIENCE_SECONDS", "60")
    daemon.stop(signal.SIGTERM)
    daemon.start("--live-restore")
    script = """
print('up', flush=True)
while not os.path.exists(BASE + '/output/go'):
    time.sleep(0.05)
print('on')
"""
    name = jobs.start(script)
    jobs.says(name, "up")
    daemon.stop(signal.SIGTERM)
    daemon.start("--live-restore")
    Path(TrainingJob.of(name).file("work", "algo-1", "output", "go")).touch()
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    lines = jobs.lines(name)
    assert (lines[0], lines[-1]) == ("up", "on")
    # between them is what the command says that lost the daemon
    assert not [line for line in lines[1:-1] if "error waiting for container" not in line]
