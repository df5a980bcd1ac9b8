"""What happens when the daemon itself goes away: a daemon of the test's own, killed and started again."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from tests.backends import need
from trainyard.docker import images
from trainyard.docker.engine import Engine, EngineUnavailableError
from trainyard.specs import AppState

from .conftest import Jobs, wait_until

pytestmark = pytest.mark.timeout(180)


class Daemon:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder}/sock"
        self.process = None

    def start(self) -> None:
        words = [
            "dockerd",
            *("--data-root", self.folder / "data", "--exec-root", self.folder / "exec"),
            *("--pidfile", self.folder / "pid", "--host", self.host),
            *("--bridge=none", "--iptables=false", "--live-restore"),
        ]
        with (self.folder / "log").open("ab") as log:
            environ = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environ)
        wait_until(self.answers, "the daemon: " + (self.folder / "log").read_text()[-2000:])

    def answers(self) -> bool:
        engine = Engine.from_env({"DOCKER_HOST": self.host})
        try:
            return bool(engine.api_version)
        except EngineUnavailableError:
            return False
        finally:
            engine.close()

    def stop(self, signum: int) -> None:
        self.process.send_signal(signum)
        self.process.wait(60)
        if signum == signal.SIGKILL:
            (self.folder / "pid").unlink(missing_ok=True)


@pytest.fixture
def daemon(image, monkeypatch):
    need("docker")
    if os.geteuid() != 0 or not shutil.which("dockerd", path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
        pytest.skip("only root can start a daemon")
    with tempfile.TemporaryDirectory(prefix="tyd", ignore_cleanup_errors=True) as name:
        daemon = Daemon(Path(name))
        daemon.start()
        engine = Engine.from_env()
        own = Engine.from_env({"DOCKER_HOST": daemon.host})
        with engine.stream("GET", f"/images/{image}/get") as archive:
            images.load(own, iter(archive.read1, b""))
        engine.close()
        own.close()
        monkeypatch.setenv("DOCKER_HOST", daemon.host)
        yield daemon
        daemon.stop(signal.SIGTERM)
        _end_containerd(Path(name))


def _end_containerd(folder: Path) -> None:
    """A killed daemon's containerd stays, and is the next daemon's; with live-restore the last one leaves it."""
    pidfile = folder / "exec" / "containerd" / "containerd.pid"
    if pidfile.exists():
        try:
            os.kill(int(pidfile.read_text()), signal.SIGTERM)
        except ProcessLookupError:
            pass
    subprocess.run(
        f"umount -l {folder}/data/overlay2/*/merged {folder}/exec/netns/* {folder}/data/containers/*/mounts/shm",
        shell=True,
        check=False,
        capture_output=True,
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_daemon_restarted_while_a_job_runs_and_is_followed(daemon, image, signum):
    jobs = Jobs(image)
    try:
        role = jobs.role("i=0; while [ $$i -lt 60 ]; do i=$$((i+1)); echo line $$i; sleep 0.1; done")
        app_id = jobs.submit(role, timeout="100")
        found: list[str] = []
        reader = threading.Thread(target=lambda: found.extend(jobs.log(app_id, should_tail=True)))
        reader.start()
        wait_until(lambda: len(jobs.log(app_id)) > 5, "some lines")
        daemon.stop(signum)
        with pytest.raises(EngineUnavailableError):
            jobs.scheduler.describe(app_id)
        daemon.start()
        response = jobs.end_of(app_id)
        assert response.state == AppState.SUCCEEDED, response
        reader.join(60)
        expected = [f"line {i}\n" for i in range(1, 61)]
        assert found == expected
        assert jobs.log(app_id) == expected
    finally:
        jobs.remove_all()
