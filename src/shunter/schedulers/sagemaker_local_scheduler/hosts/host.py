"""What the supervisor needs of every host, and hosts that are processes of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import dataclass
from typing import Any, Protocol

from shunter import system
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import (
    BASE,
    Host,
    Tree,
    checkpoint_path,
    command_of,
)
from shunter.schedulers.supervisor.process_group import ProcessGroup
from shunter.system.processes import JOB_VARIABLE, exit_code_of, find_program, group_lives, signal_name

#: In the environment of a process host: its name.
CURRENT_HOST = "SHUNTER_CURRENT_HOST"
#: Poll interval while processes of a stopped program still run.
LEFTOVER_PAUSE = 0.05
#: $1: a directory; then the command that runs in it.
_IN_DIRECTORY = 'cd "$1" && shift && exec "$@"'


@dataclass(frozen=True)
class Exit:
    """How a host's program ended.

    Attributes:
        code: its exit code; 128 + N after signal N.
        reason: what else is known; "" if nothing.
        was_killed: whether a signal ended it, so that files may be half-written.
    """

    code: int
    reason: str = ""
    was_killed: bool = False

    @property
    def by_signal(self) -> bool:
        """Whether SIGTERM or SIGKILL ended it, according to its exit code."""
        return self.code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)


class PlatformFailure(Exception):
    """This machine failed, not the program: the service reports InternalServerError."""


class StartFailure(Exception):
    """A host's program could not be started: the image or the command is wrong."""


class Running(Protocol):
    """A host of an attempt. Its methods may be called by any thread."""

    plan: Host

    def start(self) -> None:
        """Start its program."""

    def wait(self) -> Exit:
        """Wait for its end, and for its log to be complete."""

    def is_alive(self) -> bool:
        """Tell whether its program runs, or may run; True before its start."""

    def terminate(self) -> None:
        """Ask its program to stop, if it runs."""

    def kill(self) -> None:
        """Kill its program, if it runs."""

    def remove(self) -> None:
        """Remove the host, but not its files."""


def platform_variables(request: dict[str, Any], arn: str, region: str) -> dict[str, str]:
    """Return the variables that every program gets: the platform's, and above them the request's."""
    return {
        "TRAINING_JOB_NAME": request["TrainingJobName"],
        "TRAINING_JOB_ARN": arn,
        "AWS_REGION": region,
        **(request.get("Environment") or {}),
    }


class ProcessHost(ProcessGroup):
    """A host that is a process group of this machine. ``SAGEMAKER_BASE_DIR`` names its ``/opt/ml``.

    Args:
        plan: which host.
        tree: its files.
        request: the request.
        command: what it runs.
        environ: its environment.
        log_path: of its log, without the ending.
        job_dir: the job's directory, by which its processes are marked.
    """

    def __init__(
        self,
        plan: Host,
        tree: Tree,
        request: dict[str, Any],
        command: list[str],
        environ: dict[str, str],
        log_path: str,
        job_dir: str,
    ) -> None:
        self.plan = plan
        cwd = tree.part("code") if os.path.isdir(tree.part("code")) else tree.path
        self._program = command[0]
        self._command = ["sh", "-c", _IN_DIRECTORY, "sh", cwd, *command]
        self._log_path = log_path
        self.environ = {
            **environ,
            "SAGEMAKER_BASE_DIR": tree.path,
            CURRENT_HOST: plan.name,
            JOB_VARIABLE: job_dir,
        }
        self._has_ended = False
        self._is_stopped = False
        self._is_killed = False
        self._link_checkpoints(tree, request)

    @staticmethod
    def _link_checkpoints(tree: Tree, request: dict[str, Any]) -> None:
        """Link the checkpoints to the path of the request, if that is below the base directory."""
        wanted = checkpoint_path(request)
        if not wanted.startswith(f"{BASE}/"):
            return
        path = tree.part(os.path.relpath(wanted, BASE))
        if path != tree.part("checkpoints") and not os.path.lexists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(tree.part("checkpoints"), path)

    def start(self) -> None:
        """Start its program, which writes to the log itself."""
        if "/" not in self._program and find_program(self._program, self.environ.get("PATH", "")) is None:
            raise StartFailure(f"cannot start {self._program}: No such file or directory")
        log = f"{self._log_path}.log"
        try:
            self.spawn("/bin/sh", self._command, self.environ, (log, log))
        except OSError as error:
            raise StartFailure(f"cannot start {self._program}: {error.strerror}") from error

    def wait(self) -> Exit:
        """Wait for its end, then kill what it left running; after a stop, only after the grace period."""
        if not self.pid:
            return Exit(127, "it was never started")
        system.wait_without_reaping(self.pid)
        saved_later = False  # a shell may end at once while the program that it started saves its state
        while self._is_stopped and not self._is_killed and group_lives(self.pid):
            saved_later = True
            time.sleep(LEFTOVER_PAUSE)
        saved_later = saved_later and not self._is_killed
        super().kill()
        self._has_ended = True
        pid, self.pid = self.pid, 0  # after this, another process may get the number
        code, signum = exit_code_of(os.waitpid(pid, 0)[1])
        was_killed = bool(signum) and not saved_later
        return Exit(code, f"ended by {signal_name(signum)}" if signum else "", was_killed)

    def is_alive(self) -> bool:
        """Tell whether its process runs."""
        return not self._has_ended and (not self.pid or system.process_facts(self.pid) is not None)

    def terminate(self) -> None:
        """Send SIGTERM to its process group."""
        self._is_stopped = True
        super().terminate()

    def kill(self) -> None:
        """Send SIGKILL to its process group."""
        self._is_killed = True
        super().kill()

    def remove(self) -> None:
        """Do nothing: a process leaves nothing to remove."""


def command_or_toolkit(request: dict[str, Any], environ: dict[str, str], toolkit: list[str]) -> list[str]:
    """Return the command line of a host that is a process; without an entry point, the toolkit's."""
    entrypoint, arguments = command_of(request)
    if entrypoint is not None:
        return [*entrypoint, *arguments]
    if arguments and shutil.which(arguments[0], path=environ.get("PATH")):
        return arguments
    return [*toolkit, *arguments]
