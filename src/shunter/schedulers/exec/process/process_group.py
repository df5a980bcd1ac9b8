"""A program of a job and all that it starts: starting it in a session, asking it to end, killing it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from shunter.system import processes

_RESET_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGTERM,
    signal.SIGCHLD,
)
_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class ProcessGroup:
    """A program and what it starts, which share a session and a process group.

    Attributes:
        pid: the program's, which is its group's too; 0 before its start.
    """

    pid = 0

    def spawn(self, program: str, argv: list[str], env: Mapping[str, str], outputs: tuple[str, str]) -> None:
        """Start the program. It has no input, and appends what it writes to these two files.

        Raises:
            OSError: the program cannot be executed.
        """
        if not os.access(program, os.X_OK):
            raise FileNotFoundError(2, "no such program", program)
        # posix_spawn rather than a fork of this process: that takes three times as long.
        self.pid = os.posix_spawn(
            program,
            argv,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, outputs[0], _LOG_FLAGS, 0o600),
                (os.POSIX_SPAWN_OPEN, 2, outputs[1], _LOG_FLAGS, 0o600),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_RESET_SIGNALS,
        )

    def terminate(self) -> None:
        """Ask the process group to end: SIGTERM, and SIGCONT so that what is stopped can act on it."""
        if self.pid:
            processes.signal_group(self.pid, signal.SIGTERM)
            processes.signal_group(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the process group at once (SIGKILL)."""
        if self.pid:
            processes.signal_group(self.pid, signal.SIGKILL)
