"""Running programs on another machine by the system's ssh, through one connection.

The first connection becomes the master of all others (ControlMaster), so a password or one-time password is
asked for once. Jump hosts, keys and all else are as the user's ``~/.ssh/config`` has them (ssh_config(5)).
"""

from __future__ import annotations

import hashlib
import os
import shlex
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO

from shunter.backoff import Backoff
from shunter.errors import ConfigError, UnreachableError
from shunter.paths import make_private_dir, state_dir
from shunter.schedulers.hpc.commands import Answer, Commands

#: The exit code of ssh if ssh itself failed.
SSH_FAILED = 255
#: A connection is kept this long after its last use.
PERSIST_SECONDS = 600
CONNECT_SECONDS = 20
#: How long a user may take to type a password.
LOGIN_SECONDS = 180
#: sun_path has 108 bytes on Linux and 104 elsewhere; ssh adds a dot and 16 characters while it makes it.
LONGEST_SOCKET = 104 - 18
#: Where the sockets are if the path of the state directory is too long.
SHORT_PARENT = "/tmp"


class SshCommands(Commands):
    """Runs programs on a host.

    Args:
        host: its name, as ssh knows it: ``login1``, ``me@login1``, or an entry of ``~/.ssh/config``.
    """

    def __init__(self, host: str) -> None:
        if not host or host.startswith("-") or any(c.isspace() for c in host):
            raise ConfigError(
                f"host={host!r} is not the name of a host", hint="Name it as ssh knows it: me@login1."
            )
        self.host = host
        self._lock = threading.Lock()

    def argv(self, command: Sequence[str], *, tty: bool = False) -> list[str]:
        """Return the ssh command that runs a command there."""
        flags = ["-tt"] if tty else ["-T"]
        return ["ssh", *flags, *self._options(), "-oBatchMode=yes", "--", self.host, shlex.join(command)]

    def prepare(self) -> None:
        """Connect, unless a connection is there; on a terminal ssh may ask for a password.

        Raises:
            UnreachableError: the host cannot be reached, or refuses.
        """
        with self._lock:
            if not self._is_alive():
                self._connect()

    def disconnect(self) -> None:
        """End the connection."""
        self._ask_master("exit")

    def _run(self, command: list[str], stdin: bytes | IO[bytes], timeout: float, finish: float) -> Answer:
        answer = super()._run(command, stdin, timeout, finish)
        if answer.code == SSH_FAILED:
            raise self._unreachable(answer.err)
        return answer

    def _unreachable(self, words: str) -> UnreachableError:
        last = words.strip().splitlines()[-1].strip() if words.strip() else "ssh failed"
        return UnreachableError(
            f"cannot reach {self.host}: {last}",
            hint=(
                f"Try it: ssh {shlex.quote(self.host)} true. The state of the jobs is unknown at the moment."
            ),
        )

    def _is_alive(self) -> bool:
        return os.path.exists(self._socket()) and self._ask_master("check")

    def _ask_master(self, what: str) -> bool:
        """Tell whether a master is there and has answered."""
        # if the master ends during the request, ssh would log in itself; a failing ProxyCommand prevents that
        options = [f"-oControlPath={self._socket()}", "-oProxyCommand=false"]
        command = ["ssh", *options, "-O", what, "--", self.host]
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return answer.returncode == 0

    def _connect(self) -> None:
        """Open the master connection; only here may ssh ask for anything, and only on a terminal."""
        batch = [] if _has_terminal() else ["-oBatchMode=yes"]
        _await_end_of_master(self._socket())
        # ssh asks on /dev/tty, since its stdin is not a terminal; the master would hold a pipe open
        with tempfile.TemporaryFile() as errors:
            command = ["ssh", *self._options(), *batch, "-oControlMaster=yes", "-N", "-f", "--", self.host]
            try:
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                    timeout=LOGIN_SECONDS, check=False,
                )  # fmt: skip
            except FileNotFoundError:
                raise ConfigError(
                    "there is no program 'ssh' here", hint="Install OpenSSH's client."
                ) from None
            except subprocess.TimeoutExpired:
                raise self._unreachable(f"no answer within {LOGIN_SECONDS} s") from None
            errors.seek(0)
            if done.returncode != 0:
                raise self._unreachable(errors.read().decode("utf-8", "replace"))

    def _options(self) -> list[str]:
        return [
            f"-oControlPath={self._socket()}",
            f"-oControlPersist={PERSIST_SECONDS}",
            f"-oConnectTimeout={CONNECT_SECONDS}",
            "-oServerAliveInterval=15",
            "-oServerAliveCountMax=4",
        ]

    def _socket(self) -> str:
        """Return the path of the connection's socket. No ``%`` is in it, so it survives a ProxyCommand."""
        directory = os.path.join(state_dir(), "ssh")
        name = hashlib.sha256(f"{directory} {self.host}".encode()).hexdigest()[:16]
        if len(os.fsencode(os.path.join(directory, name))) > LONGEST_SOCKET or "%" in directory:
            directory = os.path.join(SHORT_PARENT, f"shunter-ssh-{os.getuid()}")
        make_private_dir(directory)
        info = os.lstat(directory)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
            raise ConfigError(
                f"{directory}, where ssh keeps its connections, is open to others",
                hint="Remove it, or set SHUNTER_HOME to a directory with a short path.",
            )
        return os.path.join(directory, name)


def commands_on(host: str) -> Commands:
    """Return the `Commands` of a host, shared by all callers in this process; "" is this machine."""
    with _lock:
        if host not in _known:
            _known[host] = SshCommands(host) if host else Commands()
        return _known[host]


_known: dict[str, Commands] = {}
_lock = threading.Lock()


def _await_end_of_master(path: str) -> None:
    """Wait up to 2 s for the end of a master whose connection has ended, but which still listens.

    At its end, it removes the path of its socket, even if the next master has already created that path.
    """
    backoff = Backoff(0.01, 0.2, jitter=0, limit=2.0)
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) != 0 or not backoff.pause():
                return


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
