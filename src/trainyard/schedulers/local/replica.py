"""One replica: its process, its attempts and how each of them ended."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, NoReturn

from trainyard.schedulers.local import linux, processes, reasons
from trainyard.specs.status import AppState, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.schedulers.local.recorder import ReplicaRecorder

_RESET_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD)

MAX_PROBLEM = 400  # keeps a message short enough for one write to a pipe


class Replica:
    """A replica and its present attempt.

    Args:
        role: name of its role.
        index: its index in the role.
        plan: ``argv``, ``env``, ``cwd`` and ``log_dir`` of the process.
    """

    def __init__(self, role: str, index: int, plan: dict[str, Any]) -> None:
        self.role = role
        self.index = index
        self.argv: list[str] = plan["argv"]
        self.env: dict[str, str] = plan["env"]
        self.cwd: str = plan["cwd"]
        self.log_dir: str = plan["log_dir"]
        self.recorder: ReplicaRecorder | None = None
        self.pid = 0
        self.state = AppState.PENDING
        self.reason = ""
        self.exit_code: int | None = None
        self.restarts = 0
        self.started_at: float | None = None
        self.ended_at: float | None = None
        #: Why we ended it, if we did; it outranks what the process says.
        self.ended_by: tuple[str, str] | None = None
        self.start_error = ""
        #: The main process has ended, but processes that it started are still there.
        self.has_leftovers = False

    @property
    def name(self) -> str:
        """How people address it: ``role/index``."""
        return f"{self.role}/{self.index}"

    @property
    def is_running(self) -> bool:
        """Whether its main process runs."""
        return self.pid != 0 and not is_terminal(self.state)

    @property
    def log_paths(self) -> tuple[str, str]:
        """Paths of stdout and stderr."""
        return os.path.join(self.log_dir, "stdout.log"), os.path.join(self.log_dir, "stderr.log")

    def prepare(self, index_path: str) -> None:
        """Make its directories and empty logs.

        Raises:
            OSError: that cannot be done.
        """
        os.makedirs(self.log_dir, exist_ok=True)
        os.makedirs(os.path.dirname(index_path), exist_ok=True)
        for path in (*self.log_paths, index_path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def start(self, error_fd: int) -> None:
        """Start an attempt. A program that cannot be executed is reported through ``error_fd``.

        Raises:
            OSError: no process could be made.
        """
        if self.started_at is not None:
            self._set_error_file_aside()
        self.state = AppState.RUNNING
        self.reason = self.start_error = ""
        self.exit_code = self.ended_at = self.ended_by = None
        self.started_at = time.time()
        sys.stderr.flush()
        # Blocked until the child has its own signal handlers: ours would write to the supervisor's pipe.
        signal.pthread_sigmask(signal.SIG_BLOCK, _RESET_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_program(error_fd)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _RESET_SIGNALS)
        self.pid = pid

    def _become_program(self, error_fd: int) -> NoReturn:
        """Turn the forked child into the replica's program. Never returns."""
        try:
            os.setsid()
            linux.die_with_parent()
            for signum in _RESET_SIGNALS:
                signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(os.open(self.log_paths[0], flags, 0o600), 1)
            os.dup2(os.open(self.log_paths[1], flags, 0o600), 2)
            os.chdir(self.cwd)
            os.execvpe(self.argv[0], self.argv, self.env)
        except BaseException as error:
            problem = _start_problem(self.argv[0], self.cwd, error)[:MAX_PROBLEM]
            os.write(error_fd, json.dumps([self.role, self.index, problem]).encode() + b"\n")
        finally:
            os._exit(127)

    def stop(self, reason: str, detail: str = "") -> None:
        """Ask the process group to end (SIGTERM)."""
        if self.ended_by is None:
            self.ended_by = (reason, detail)
        if not processes.signal_group(self.pid, signal.SIGTERM):  # it is too young to have its group yet
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process group at once (SIGKILL)."""
        processes.signal_group(self.pid, signal.SIGKILL)

    def ended(self, status: int, oom_evidence: str) -> str:
        """Take note of how the main process ended; returns the reason."""
        self.exit_code, signum = processes.exit_code_of(status)
        self.ended_at = time.time()
        detail = ""
        if self.ended_by is not None:
            reason, detail = self.ended_by
        elif self.start_error:
            reason, detail = reasons.NOT_STARTED, self.start_error
        elif signum == signal.SIGKILL and oom_evidence:
            reason, detail = reasons.OUT_OF_MEMORY, oom_evidence
        elif signum:
            reason = reasons.SIGNAL
        else:
            reason = reasons.FAILED if self.exit_code else reasons.SUCCEEDED
        self.reason = reasons.describe(reason, code=self.exit_code, signum=signum, detail=detail)
        self.state = reasons.state_of(reason)
        self.has_leftovers = processes.signal_group(self.pid, signal.SIGTERM)
        return reason

    def never_ran(self, problem: str) -> None:
        """Take note that no process could be made."""
        self.reason = reasons.describe(reasons.NOT_STARTED, detail=problem)
        self.state = reasons.state_of(reasons.NOT_STARTED)
        self.ended_at = time.time()

    def to_json(self) -> dict[str, Any]:
        """Return its part of the state document."""
        return {
            "id": self.index,
            "state": self.state.name,
            "pid": self.pid,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "restarts": self.restarts,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
        }

    def _set_error_file_aside(self) -> None:
        path = self.env.get("TORCHELASTIC_ERROR_FILE", "")
        if path and os.path.exists(path):
            os.replace(path, f"{path}.{self.restarts}")


def _start_problem(program: str, cwd: str, error: BaseException) -> str:
    if isinstance(error, FileNotFoundError) and not os.path.isdir(cwd):
        return f"its working directory {cwd} does not exist"
    if isinstance(error, FileNotFoundError):
        return f"{program}: no such program, or its interpreter is missing"
    if isinstance(error, OSError):
        text = f"{program}: {error.strerror}"
        return f"{text} (does the script begin with '#!'?)" if error.errno == 8 else text
    return f"{program}: {error}"
