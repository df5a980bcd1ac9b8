"""What happens when the daemon itself goes away: a daemon of the test's own, killed and started again."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from shunter.docker.command import DockerCommand
from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.specs import AppState
from tests.backends import need

from .conftest import Jobs, wait_until

pytestmark = pytest.mark.timeout(180)


class Daemon:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder}/sock"
        self.process = None

    def start(self, *more: str) -> None:
        # In a network namespace of its own: without a bridge, it would remove that of the machine's daemon.
        words = [
            *("unshare", "--net", "dockerd"),
            *("--data-root", self.folder / "data", "--exec-root", self.folder / "exec"),
            *("--pidfile", self.folder / "pid", "--host", self.host),
            *("--bridge=none", "--iptables=false", *(more or ["--live-restore"])),
        ]
        with (self.folder / "log").open("ab") as log:
            environ = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environ)
        try:
            wait_until(self.answers, "the daemon")
        except AssertionError:
            print((self.folder / "log").read_text()[-3000:])
            raise

    def answers(self) -> bool:
        try:
            return bool(DockerCommand({"DOCKER_HOST": self.host}).facts())
        except EngineUnavailableError:
            return False

    def stop(self, signum: int) -> None:
        self.process.send_signal(signum)
        self.process.wait(60)
        if signum == signal.SIGKILL:
            # Its containerd dies with it, but a zombie that nobody has reaped would be taken for alive.
            for pidfile in (self.folder / "pid", self.folder / "exec" / "containerd" / "containerd.pid"):
                pidfile.unlink(missing_ok=True)


def copy_image(image, host):
    """Give a daemon an image that the usual one has."""
    saved = subprocess.run(["docker", "save", image], capture_output=True, check=True).stdout
    subprocess.run(["docker", "--host", host, "load"], input=saved, check=True, capture_output=True)


@pytest.fixture
def daemon(image, monkeypatch):
    need("docker")
    if os.geteuid() != 0 or not shutil.which("dockerd", path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
        pytest.skip("only root can start a daemon")
    with tempfile.TemporaryDirectory(prefix="tyd", ignore_cleanup_errors=True) as name:
        daemon = Daemon(Path(name))
        daemon.start()
        copy_image(image, daemon.host)
        monkeypatch.setenv("DOCKER_HOST", daemon.host)
        yield daemon
        daemon.stop(signal.SIGTERM)
        _end_containerd(Path(name))


def _end_containerd(folder: Path) -> None:
    """End what a daemon with live-restore leaves, and unmount what it has mounted."""
    pidfile = folder / "exec" / "containerd" / "containerd.pid"
    if pidfile.exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pidfile.read_text()), signal.SIGTERM)
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for path in sorted((path for path in mounted if path.startswith(str(folder))), reverse=True):
        subprocess.run(["umount", "-l", path], check=False)


@pytest.mark.slow
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
        wait_until(lambda: "does not answer" in jobs.scheduler.describe(app_id).msg, "the loss")
        assert jobs.scheduler.describe(app_id).state == AppState.RUNNING
        daemon.start()
        response = jobs.end_of(app_id)
        assert response.state == AppState.SUCCEEDED, response
        reader.join(60)
        expected = [f"line {i}\n" for i in range(1, 61)]
        assert jobs.log(app_id, streams="stdout") == expected
        # the command has said on stderr that it lost the daemon
        assert [line for line in found if line.startswith("line")] == expected
    finally:
        jobs.remove_all()


@pytest.mark.slow
def test_daemon_that_takes_the_job_down_with_it(daemon, image):
    """As it does without live-restore: the job has failed, which is said only when the daemon is back."""
    daemon.stop(signal.SIGTERM)
    daemon.start("--live-restore=false")
    jobs = Jobs(image)
    try:
        app_id = jobs.submit(jobs.role("echo up; exec sleep 600", num_replicas=2, max_retries=0))
        found: list[str] = []
        reader = threading.Thread(target=lambda: found.extend(jobs.log(app_id, should_tail=True)))
        reader.start()
        wait_until(lambda: jobs.log(app_id, k=1) and jobs.log(app_id), "both replicas")
        daemon.stop(signal.SIGTERM)
        daemon.start("--live-restore=false")
        response = jobs.end_of(app_id)
        assert response.state == AppState.FAILED
        reader.join(60)
        assert found[0] == "up\n"
    finally:
        jobs.remove_all()
