"""One replica: its process, its attempts and how each of them ended."""

from __future__ import annotations

import os
import signal
import time

from trainyard.schedulers.exec.process import reasons
from trainyard.specs.status import AppState, is_terminal
from trainyard.system import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.schedulers.exec.process.log_recorder import ReplicaRecorder

_RESET_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD)
_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class Replica:
    """A replica and its present attempt.

    Args:
        role: name of its role.
        index: its index in the role.
        plan: ``program``, ``argv``, ``env`` and ``log_dir`` of the process.
    """

    def __init__(self, role: str, index: int, plan: dict[str, Any]) -> None:
        self.role = role
        self.index = index
        self.program: str = plan["program"]
        self.argv: list[str] = plan["argv"]
        self.env: dict[str, str] = plan["env"]
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
        #: The main process has ended, but processes that it started are still there.
        self.has_leftovers = False
        #: It was stopped, and its grace period has passed.
        self.grace_is_over = False

    @property
    def name(self) -> str:
        """How people address it: ``role/index``."""
        return f"{self.role}/{self.index}"

    @property
    def is_running(self) -> bool:
        """Whether its main process runs."""
        return self.pid != 0 and not is_terminal(self.state)

    @property
    def was_stopped(self) -> bool:
        """Whether we have asked its present attempt to end."""
        return self.ended_by is not None

    @property
    def log_paths(self) -> tuple[str, str]:
        """Paths of stdout and stderr."""
        return os.path.join(self.log_dir, "stdout.log"), os.path.join(self.log_dir, "stderr.log")

    def start(self) -> None:
        """Start an attempt.

        Raises:
            OSError: the program cannot be executed.
        """
        if self.started_at is not None:
            self._set_error_file_aside()
        self.reason = ""
        self.exit_code = self.ended_at = self.ended_by = None
        self.grace_is_over = False
        self.started_at = time.time()
        if not os.access(self.program, os.X_OK):
            raise FileNotFoundError(2, "no such program", self.program)
        # posix_spawn rather than a fork of this process: that takes three times as long.
        self.pid = os.posix_spawn(
            self.program,
            self.argv,
            self.env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, self.log_paths[0], _LOG_FLAGS, 0o600),
                (os.POSIX_SPAWN_OPEN, 2, self.log_paths[1], _LOG_FLAGS, 0o600),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_RESET_SIGNALS,
        )
        self.state = AppState.RUNNING

    def stop(self, reason: str, detail: str = "") -> None:
        """Ask the process group to end: SIGTERM, and SIGCONT so that what is stopped can act on it."""
        self.ended_by = (reason, detail)
        processes.signal_group(self.pid, signal.SIGTERM)
        processes.signal_group(self.pid, signal.SIGCONT)

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
        elif signum == signal.SIGKILL and oom_evidence:
            reason, detail = reasons.OUT_OF_MEMORY, oom_evidence
        elif signum:
            reason = reasons.SIGNAL
        else:
            reason = reasons.FAILED if self.exit_code else reasons.SUCCEEDED
        self.reason = reasons.describe(reason, code=self.exit_code, signum=signum, detail=detail)
        self.state = reasons.state_of(reason)
        # After a stop the others of its group have had their SIGTERM, and may be at work on it.
        self.has_leftovers = processes.signal_group(self.pid, 0 if self.was_stopped else signal.SIGTERM)
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
            os.replace(path, f"{path}.{self.restarts - 1}")
