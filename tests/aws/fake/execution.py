"""Running the containers of fake jobs as processes of this machine, their output going to a log stream."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

#: What a container gets of the machine's environment.
KEPT = ("PATH", "HOME", "LANG", "TMPDIR")


class Container:
    """A running container.

    Args:
        properties: ContainerProperties; command and environment are used.
        extra: more variables.
        write: takes the lines of the output as they come.
    """

    def __init__(
        self, properties: dict[str, Any], extra: dict[str, str], write: Callable[[list[str]], None]
    ) -> None:
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        env |= {pair["name"]: pair["value"] for pair in properties.get("environment", [])} | extra
        self._write = write
        self._killed_by = ""
        self.process = subprocess.Popen(
            properties["command"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, timeout: float | None) -> tuple[int, str]:
        """Pass on the output until the end; return the exit code and why it was killed, if it was."""
        alarm = None
        if timeout is not None:
            alarm = threading.Timer(timeout, self.kill, ["Job attempt duration exceeded timeout"])
            alarm.daemon = True
            alarm.start()
        stdout = self.process.stdout
        assert stdout is not None
        pending = b""
        while data := stdout.read1(65536):  # type: ignore[attr-defined]
            *lines, pending = (pending + data).split(b"\n")
            # as Docker's awslogs driver: a line is an event, empty lines are not sent
            if texts := [line.decode("utf-8", "replace") for line in lines if line]:
                self._write(texts)
        if pending:
            self._write([pending.decode("utf-8", "replace")])
        stdout.close()
        code = self.process.wait()
        if alarm is not None:
            alarm.cancel()
        return (code if code >= 0 else 128 - code), self._killed_by

    def kill(self, why: str) -> None:
        """Kill the container with all that it started."""
        self._killed_by = self._killed_by or why
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
