"""A program of a job and all that it starts: starting it in a session, asking it to end, killing it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import NoReturn

from shunter import system
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

        The kernel kills it when the thread that calls this ends, however that ends.

        Raises:
            OSError: the program cannot be executed.
        """
        if not os.access(program, os.X_OK):
            raise FileNotFoundError(2, "no such program", program)
        parent = os.getpid()
        problem_out, problem_in = os.pipe()  # closed by the start of the program
        pid = os.fork()
        if pid == 0:
            try:
                system.die_with_parent(parent)
                _become(program, argv, env, outputs)
            except OSError as error:
                os.write(problem_in, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(problem_in)
        with open(problem_out, "rb") as pipe:
            problem = pipe.read()
        if problem:
            os.waitpid(pid, 0)
            raise OSError(int(problem), os.strerror(int(problem)), program)
        self.pid = pid

    def terminate(self) -> None:
        """Ask the process group to end: SIGTERM, and SIGCONT so that what is stopped can act on it."""
        if self.pid:
            processes.signal_group(self.pid, signal.SIGTERM)
            processes.signal_group(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the process group at once (SIGKILL)."""
        if self.pid:
            processes.signal_group(self.pid, signal.SIGKILL)


def _become(program: str, argv: list[str], env: Mapping[str, str], outputs: tuple[str, str]) -> NoReturn:
    """Replace this process by a program, in a new session."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for signum in _RESET_SIGNALS:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    files = [os.open(os.devnull, os.O_RDONLY), *(os.open(path, _LOG_FLAGS, 0o600) for path in outputs)]
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.execve(program, argv, env)
