from __future__ import annotations

import os
import pty
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from shunter.schedulers.hpc import ssh
from tests import backends
from tests.cluster_hosts import wait_until
from tests.schedulers.hpc.fake_cluster import FakeCluster


@pytest.fixture
def queue(tmp_path, monkeypatch) -> Path:
    """The directory of a queue that is empty."""
    directory = tmp_path / "queue"
    directory.mkdir()
    monkeypatch.setenv("FAKE_QUEUE", str(directory))
    return directory


@pytest.fixture
def cluster(queue) -> Iterator[FakeCluster]:
    """A cluster on this machine."""
    scheduler = FakeCluster()
    yield scheduler
    scheduler.close()


class LoginNode:
    """A real sshd, with separate keys and configuration.

    Args:
        directory: holds everything.
        passphrase: of the user's key.
        host: where it runs, if not on this machine itself: something with a method ``start`` like `Host`'s.
        address: where it listens; by default a loopback address that only it uses.
        settings: more lines of its configuration, which come first.
        environment: of the programs that are run there.
    """

    def __init__(
        self,
        directory: Path,
        passphrase: str = "",
        *,
        host: Any = None,
        address: str = "",
        settings: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        # Only it uses this address, so its port stays free while it is away.
        address = address or "127." + ".".join(str(random.randrange(1, 255)) for _ in range(3))
        self.directory = directory
        self.address = address
        self._host = host
        self.log = directory / "sshd.log"
        directory.mkdir()
        for name, secret in (("host", ""), ("user", passphrase)):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", secret, "-f", str(directory / name)], check=True
            )
        with socket.create_server(("127.0.0.1" if host else address, 0)) as free:
            self.port = free.getsockname()[1]
        # the start-up files of the user's shell are not the test's matter
        variables = " ".join(
            f"{name}={value}" for name, value in {"HOME": directory, **(environment or {})}.items()
        )
        (directory / "sshd_config").write_text(
            f"{settings}Port {self.port}\nListenAddress {address}\nHostKey {directory}/host\nUsePAM no\n"
            "StrictModes no\n"
            f"AuthorizedKeysFile {directory}/user.pub\nPasswordAuthentication no\nLogLevel VERBOSE\n"
            f"PidFile {directory}/sshd.pid\nAcceptEnv FAKE_QUEUE\nMaxSessions 50\n"
            f"SetEnv {variables}\n"
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def config(self) -> str:
        """What the user's configuration of ssh says of it."""
        return (
            f"HostName {self.address}\nPort {self.port}\nIdentityFile {self.directory}/user\n"
            "IdentitiesOnly yes\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
            "LogLevel ERROR\nIdentityAgent none\n"
        )

    def start(self) -> None:
        os.makedirs("/run/sshd", exist_ok=True)
        command = ["/usr/sbin/sshd", "-D", "-f", str(self.directory / "sshd_config"), "-E", str(self.log)]
        if self._host is None:
            self.process = subprocess.Popen(command)
        else:
            self.process = self._host.start(*command, environment={}, log=self.log)
        wait_until(lambda: is_listening(self.port, self.address), "sshd listens")

    def stop(self) -> None:
        """End it with all its connections."""
        if self.process is None:
            return
        for pid in children_of(self._daemon):
            for inner in children_of(pid):
                end(inner)
            end(pid)
        end(self._daemon)
        self.process.kill()
        self.process.wait()
        self.process = None

    def cut(self) -> None:
        """Cut all connections, as a firewall does that forgets them; new ones are accepted."""
        for pid in children_of(self._daemon):
            end(pid)

    @property
    def _daemon(self) -> int:
        assert self.process is not None
        return self.process.pid if self._host is None else children_of(self.process.pid)[0]

    def logins(self) -> int:
        """Return how many connections have been accepted."""
        return self.log.read_text().count("Accepted publickey") if self.log.exists() else 0


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def end(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass


def is_listening(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def use_config(directory: Path, monkeypatch: pytest.MonkeyPatch, hosts: dict[str, str]) -> None:
    """Put an ``ssh`` first in PATH that reads this configuration instead of the one in the home directory."""
    bin_directory = directory / "bin"
    bin_directory.mkdir()
    config = directory / "ssh_config"
    config.write_text("".join(f"Host {name}\n{text}\n" for name, text in hosts.items()))
    program = bin_directory / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_directory), prepend=os.pathsep)


@pytest.fixture
def login_node(tmp_path, monkeypatch) -> Iterator[LoginNode]:
    """A login node that ssh knows as ``login1``."""
    backends.need("sshd")
    node = LoginNode(tmp_path / "login1")
    use_config(tmp_path, monkeypatch, {"login1": node.config})
    yield node
    forget_connections()
    node.stop()


def forget_connections() -> None:
    for commands in ssh._known.values():
        if isinstance(commands, ssh.SshCommands):
            commands.disconnect()
    ssh._known.clear()


def run_on_terminal(program: str, prompt: bytes, answer: bytes) -> bytes:
    """Run Python source on a terminal, answer its only prompt, and return what was shown; it must succeed."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])
    shown = b""
    while prompt not in shown:
        shown += os.read(terminal, 4096)
    os.write(terminal, answer + b"\n")
    try:
        while shown.count(prompt) == 1 and (data := os.read(terminal, 4096)):
            shown += data
    except OSError:  # the other side has ended
        pass
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, shown
    assert shown.count(prompt) == 1
    return shown
