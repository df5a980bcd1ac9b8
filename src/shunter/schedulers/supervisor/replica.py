"""One replica: its process group, its attempts, and how each of them ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from shunter.schedulers.supervisor import reasons
from shunter.schedulers.supervisor.log_index import LOG_NAMES
from shunter.schedulers.supervisor.log_recorder import ReplicaRecorder
from shunter.schedulers.supervisor.process_group import ProcessGroup
from shunter.schedulers.supervisor.process_plan import ReplicaPlan
from shunter.specs.status import AppState, is_terminal
from shunter.system import processes

MOST_NOTES = 20
#: How many earlier attempts are kept, namely the last ones.
MOST_EARLIER = 50
#: How many bytes of each log are read to find the cause of a failure.
LOG_END = 256 * 1024


class Replica(ProcessGroup):
    """A replica and its present attempt.

    Args:
        role: name of its role.
        index: its index in the role.
        plan: the process.
        env: variables of all replicas of the job.
    """

    def __init__(self, role: str, index: int, plan: ReplicaPlan, env: Mapping[str, str]) -> None:
        self.role = role
        self.index = index
        self.program = plan.program
        self.argv = plan.argv
        self.env = {**env, **plan.env}
        self.log_dir = plan.log_dir
        #: Its own working directory; "" for the job's.
        self.cwd = plan.cwd
        self._has_one_log = plan.one_log
        self.recorder: ReplicaRecorder | None = None
        self.state = AppState.PENDING
        self.reason = ""
        self.exit_code: int | None = None
        self.restarts = 0
        self.started_at: float | None = None
        self.ended_at: float | None = None
        #: What happened to it, in words, the oldest first: retries by class of failure, hangs.
        self.notes: list[str] = []
        #: Sizes of its logs when the present attempt began.
        self.log_starts = (0, 0)
        #: How earlier attempts went, the last `MOST_EARLIER` of them.
        self.earlier: list[dict[str, Any]] = []
        #: Why the supervisor ended it, if it did; this counts more than the exit status.
        self.ended_by: tuple[str, str] | None = None
        #: Which of `reasons` its last attempt ended for; "" so far.
        self.end = ""
        #: The main process has ended, but processes that it started still run.
        self.has_leftovers = False
        #: It was stopped, and its grace period is over.
        self.grace_is_over = False
        #: Processes that it started ran on when it ended.
        self._went_on = False
        #: A signal ended its last attempt, or a program that a shell had started for it.
        self._ended_by_signal = False

    @property
    def name(self) -> str:
        """Its name for users: ``role/index``."""
        return f"{self.role}/{self.index}"

    @property
    def is_running(self) -> bool:
        """Whether its main process runs."""
        return self.pid != 0 and not is_terminal(self.state)

    def may_run(self) -> bool:
        """Whether its main process runs, or may run: True before its start."""
        return not is_terminal(self.state)

    @property
    def was_stopped(self) -> bool:
        """Whether the present attempt was asked to end."""
        return self.ended_by is not None

    @property
    def log_paths(self) -> tuple[str, ...]:
        """Paths of stdout and stderr, or of the one file for both."""
        names = LOG_NAMES[:1] if self._has_one_log else LOG_NAMES
        return tuple(os.path.join(self.log_dir, name) for name in names)

    @property
    def outputs(self) -> tuple[str, str]:
        """Where its stdout and its stderr go."""
        return self.log_paths[0], self.log_paths[-1]

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended its last attempt, so that what it was writing may be incomplete."""
        # a shell may end at once while the program that it started saves its state
        return self._ended_by_signal and (self.grace_is_over or not self._went_on)

    def start(self) -> None:
        """Start an attempt.

        Raises:
            OSError: the program cannot be executed.
        """
        self.started_at = time.time()
        self.log_starts = self.recorder.begin_attempt() if self.recorder is not None else (0, 0)
        self.spawn(self.program, self.argv, self.env, self.outputs)
        self.state = AppState.RUNNING

    def set_aside(self) -> None:
        """Keep what is known of the attempt that has ended, before another one."""
        if self.started_at is not None:
            self._set_error_file_aside()
            self._keep_attempt()
        self.restarts += 1
        self.state, self.pid = AppState.PENDING, 0
        self.reason = self.end = ""
        self.exit_code = self.started_at = self.ended_at = self.ended_by = None
        self.grace_is_over = self._went_on = False

    def stop(self, reason: str, detail: str = "") -> None:
        """Ask the process group to end."""
        self.ended_by = (reason, detail)
        self.terminate()

    def ended(self, status: int, oom_evidence: str) -> str:
        """Record how the main process ended; returns the reason."""
        self.exit_code, signum = processes.exit_code_of(status)
        self._ended_by_signal = signum != 0 or self.exit_code == 128 + signal.SIGKILL
        detail = ""
        if self.ended_by is not None:
            reason, detail = self.ended_by
        elif signum == signal.SIGKILL and oom_evidence:
            reason, detail = reasons.KILLED_BY_KERNEL, oom_evidence
        elif signum:
            reason = reasons.SIGNAL
        elif self.exit_code:
            reason = reasons.LOG_DISK_FULL if is_full(self.log_dir) else reasons.FAILED
        else:
            reason = reasons.SUCCEEDED
        name = processes.signal_name(signum) if signum else ""
        self.end_with(reason, reasons.describe(reason, code=self.exit_code, signal=name, detail=detail))
        # After a stop, the rest of its group has received SIGTERM and may be handling it.
        self.has_leftovers = processes.signal_group(self.pid, 0 if self.was_stopped else signal.SIGTERM)
        self._went_on = self.has_leftovers
        return reason

    def never_starts(self, reason: str, text: str) -> None:
        """Record that it will not be started, why, and the same in words."""
        self.state = reasons.state_of(reason)
        self.reason = text

    def never_ran(self, problem: str) -> None:
        """Record that no process could be started."""
        self.end_with(reasons.NOT_STARTED, reasons.describe(reasons.NOT_STARTED, detail=problem))

    def end_with(self, reason: str, text: str) -> None:
        """Record that the attempt has ended, why, and the same in words."""
        self.end, self.reason, self.state, self.ended_at = reason, text, reasons.state_of(reason), time.time()

    def note(self, text: str) -> None:
        """Record what happened to the replica; only the last `MOST_NOTES` notes are kept."""
        self.notes = [*self.notes, text][-MOST_NOTES:]

    def stack_program(self, headline: str, mode: str, program: list[str]) -> list[str]:
        """Return the command that examines it, and writes its stacks to its log if ``mode`` says so.

        ``program`` runs `stack_dump`.
        """
        return [*program, mode, str(self.pid), self.log_paths[-1], headline]

    def log_end(self) -> list[str]:
        """Return the last lines of the present attempt, those of stderr after those of stdout."""
        lines: list[str] = []
        for path, start in zip(self.log_paths, self.log_starts, strict=False):
            try:
                with open(path, "rb") as file:
                    file.seek(max(start, os.fstat(file.fileno()).st_size - LOG_END))
                    lines += file.read(LOG_END).decode("utf-8", "replace").splitlines()
            except OSError:
                continue
        return lines

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
            **({"log_starts": self.log_starts} if self.restarts else {}),
            **({"notes": self.notes} if self.notes else {}),
            **({"earlier": self.earlier} if self.earlier else {}),
        }

    def _keep_attempt(self) -> None:
        attempt = {
            "number": self.restarts,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "log_starts": self.log_starts,
        }
        self.earlier = [*self.earlier, attempt][-MOST_EARLIER:]

    def _set_error_file_aside(self) -> None:
        path = self.env.get("TORCHELASTIC_ERROR_FILE", "")
        if path and os.path.exists(path):
            os.replace(path, f"{path}.{self.restarts}")


def is_full(path: str) -> bool:
    """Tell whether nothing more can be written to the file system of a directory."""
    try:
        return os.statvfs(path).f_bavail == 0
    except OSError:
        return False
