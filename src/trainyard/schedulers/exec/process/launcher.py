"""Starting the supervisor of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from trainyard.system.processes import JOB_VARIABLE

SUPERVISE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervise.py")
#: What the process list shows beside the program until there is a job; long enough for a job's title.
WAITING = "waiting-for-a-job-whose-plan-comes-through-standard-input"


class Launcher:
    """The process that starts a job's supervisor. It may be started before there is a job.

    Args:
        supervisor: class of the supervisor, as ``module:Class``.
        flags: Python's flags for it.
        environ: variables that it gets beside this process's.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, supervisor: str, flags: Sequence[str], environ: dict[str, str] | None = None) -> None:
        inherited = {key: value for key, value in os.environ.items() if key != JOB_VARIABLE}
        self._process = subprocess.Popen(
            [sys.executable, *flags, SUPERVISE, supervisor, WAITING],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**inherited, **(environ or {})},
        )

    def is_waiting(self) -> bool:
        """Tell whether it is still there."""
        return self._process.poll() is None

    def launch(self, plan: dict[str, Any]) -> str:
        """Hand over a job; returns what went wrong, "" if its supervisor is at work."""
        _, problem = self._process.communicate(json.dumps(plan).encode("utf-8", "surrogateescape"))
        if self._process.returncode == 0:
            return ""
        return problem.decode("utf-8", "replace").strip() or "its supervisor ended before it was ready"

    def discard(self) -> None:
        """End it without a job."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.communicate()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.discard()
