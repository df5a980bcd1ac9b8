"""Docker daemons of a test's own, to be killed and filled up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.docker.command import DockerCommand
from tests.backends import backend, need
from tests.workspace.machines import docker

READY_SECONDS = 45.0


class OwnDaemon:
    """A dockerd whose data lie on a small file system.

    Args:
        folder: where everything of it is; short, since a socket's path is.
        size: of its data's file system, as tmpfs takes it; "" for no limit.
    """

    def __init__(self, folder: Path, size: str = "") -> None:
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        if size:
            words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self.data)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            backend("mount", done.returncode == 0, f"cannot mount a tmpfs: {done.stderr}")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        return f"unix://{self.folder}/d.sock"

    def command(self) -> DockerCommand:
        return DockerCommand({"DOCKER_HOST": self.host})

    def start(self) -> OwnDaemon:
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    # without a network of its own it would remove docker0, which is another daemon's
                    *("unshare", "--net", "dockerd"),
                    *("--data-root", str(self.data), "--exec-root", str(self.folder / "exec")),
                    *("--pidfile", str(self.folder / "pid"), "--host", self.host),
                    *("--bridge=none", "--iptables=false"),
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + READY_SECONDS
        while (
            docker("version", "--format", "{{.Server.Version}}", check=False, host=self.host).strip() == b""
        ):
            assert self.process.poll() is None, self._log()
            assert time.monotonic() < deadline, self._log()
            time.sleep(0.05)
        return self

    def _log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """End it as a crash does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        self._end_containerds()
        (self.folder / "pid").unlink(missing_ok=True)

    def remove(self) -> None:
        """Stop it in order, and remove all of it."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)
        self._end_containerds()
        # dockerd itself mounts it too
        while (
            subprocess.run(["umount", "--lazy", str(self.data)], check=False, capture_output=True).returncode
            == 0
        ):
            pass
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_containerds(self) -> None:
        """End the containerd that a killed daemon left behind."""
        for path in self.folder.glob("exec/**/containerd.pid"):
            try:
                pid = int(path.read_text())
                if str(self.folder) in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
            except (OSError, ValueError):
                continue
            path.unlink(missing_ok=True)


@pytest.fixture
def small_daemon() -> Iterator[OwnDaemon]:
    """A daemon that has room for 40 MB."""
    need("docker")
    need("netns")
    daemon = OwnDaemon(Path(tempfile.mkdtemp(prefix="ty-")), "40m").start()
    yield daemon
    daemon.remove()


@pytest.fixture
def own_daemon() -> Iterator[OwnDaemon]:
    """A daemon that may be killed."""
    need("docker")
    need("netns")
    daemon = OwnDaemon(Path(tempfile.mkdtemp(prefix="ty-"))).start()
    yield daemon
    daemon.remove()
