"""Starting a job's supervisor: the command's end of the pipes through which it gets its job, and answers."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from shunter.system.identity import Process
from shunter.system.processes import JOB_VARIABLE

#: What the supervisor answers, after a line with its identity, when it runs its job.
READY = b"ready"
#: Python's flags for a supervisor: it starts in half the time without ``site``.
FLAGS = ("-I", "-S")
PROGRAM = os.path.abspath(os.path.join(os.path.dirname(__file__), "main.py"))
#: What the process list shows beside the program until there is a job; long enough for a job's title.
WAITING = "waiting-for-a-job-whose-plan-comes-through-standard-input"


class StartingSupervisor:
    """A supervisor that loads, and waits for its job's plan.

    Args:
        supervisor: class of the supervisor, as ``module:Class``.
        flags: Python's flags for it.
        environ: variables that it gets in addition to this process's.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        supervisor: str = "shunter.schedulers.supervisor.supervisor:Supervisor",
        flags: Sequence[str] = FLAGS,
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        inherited = {key: value for key, value in os.environ.items() if key != JOB_VARIABLE}
        self._answer = b""
        plan_out, self._plan = os.pipe()
        self._problem, problem_in = os.pipe()
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, *flags, PROGRAM, supervisor, _packages(), WAITING],
                {**inherited, **environ},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, plan_out, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, problem_in, 2),
                ],
                setsid=True,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        except OSError:
            os.close(self._plan)
            os.close(self._problem)
            raise
        finally:
            os.close(plan_out)
            os.close(problem_in)

    def process(self) -> Process | None:
        """Return the process that waits for a job, as soon as there is one; None if it has ended."""
        while b"\n" not in self._answer and self._receive():
            pass
        return Process.parse(self._answer.partition(b"\n")[0].decode("utf-8", "replace"))

    def run(self, plan: dict[str, Any]) -> str:
        """Hand over a job; returns what went wrong, "" if its supervisor is at work."""
        rest = memoryview(json.dumps(plan).encode())
        try:
            while rest:  # it reads everything before it answers
                rest = rest[os.write(self._plan, rest) :]
        except BrokenPipeError:  # it has ended, and has said why
            pass
        identity, _, answer = self._read_answer().partition(b"\n")
        if answer == READY:
            return ""
        said = answer if Process.parse(identity.decode("utf-8", "replace")) else self._answer
        return said.decode("utf-8", "replace").strip() or "its supervisor was killed before it was ready"

    def discard(self) -> None:
        """End the process, unless it has been given a job."""
        if self.pid:
            self._read_answer()

    def _receive(self) -> bool:
        """Wait for more of its answer; returns False if that is complete."""
        chunk = os.read(self._problem, 65536)
        self._answer += chunk
        return bool(chunk)

    def _read_answer(self) -> bytes:
        """Close its input; returns its answer when it has given one, or has ended."""
        if self._plan >= 0:
            os.close(self._plan)
            self._plan = -1
        while self._receive():
            pass
        os.waitpid(self.pid, 0)
        os.close(self._problem)
        self._problem, self.pid = -1, 0
        return self._answer

    def __del__(self) -> None:
        if getattr(self, "pid", 0):
            self.discard()


def _packages() -> str:
    """Return where the only package is that a supervisor needs besides the standard library."""
    spec = find_spec("psutil")
    assert spec is not None
    assert spec.origin is not None
    return os.path.dirname(os.path.dirname(spec.origin))
