"""Watches a script for hangs from inside its container, where the log is not a file.

``train`` passes the script's output on, and counts it in memory that it shares with a forked process. That
process checks whether the count grows; if not, it writes the stacks to the container's log, and stops the
script if requested.
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import struct
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence

from . import hung_program, log, orphans, stack_dump

#: ``SECONDS report|stop``: how long without a sign of life counts as a hang, and what is done about it.
VARIABLE = "SHUNTER_HANG"
_COUNT = struct.Struct("Q")
_MARK = _COUNT.size


class ScriptWatch:
    """Watches the script of this container.

    Args:
        seconds: how long it may show no sign of life before it counts as hung.
        on_hang: `hung_program.REPORT` or `hung_program.STOP`.
        results: folders that it writes results to.
    """

    def __init__(self, seconds: float, on_hang: str, results: Sequence[str]) -> None:
        self.seconds = seconds
        self.on_hang = on_hang
        self.results = list(results)
        self.grace = 0.0
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        self._count = 0
        self._pid = 0
        self._folder = ""

    @property
    def stop_reason(self) -> str:
        """Why the script was stopped, in words; "" if it was not."""
        return hung_program.stop_reason(self.seconds) if self._shared[_MARK] else ""

    def observe(self, data: bytes) -> None:
        """Count output as it passes."""
        self._count += len(data)
        _COUNT.pack_into(self._shared, 0, self._count)

    def prepare(self, variables: MutableMapping[str, str]) -> None:
        """Make the script's Python processes write their stacks on a signal, if possible."""
        try:
            self._folder = tempfile.mkdtemp(prefix="shunter-")
            path = os.path.join(self._folder, stack_dump.HANDLER_FILE)
            with open(path, "w", encoding="utf-8") as file:
                file.write(stack_dump.HANDLER)
            os.chmod(self._folder, 0o755)
        except OSError:  # only the kernel's stacks will be shown
            return
        paths = [self._folder, variables.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        variables[stack_dump.VARIABLE] = str(int(stack_dump.SIGNAL))

    def start(self, script: int) -> None:
        """Fork a process that watches the script."""
        orphans.prepare()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid:
            orphans.keep(self._pid)
            return
        try:
            orphans.die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)  # they are for the script, which may need time to end
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            program = hung_program.HungProgram(
                script, self.seconds, self.results, self._written, output=2, say=log.warning
            )
            hung_program.watch(program, self.on_hang, self.grace, self._note_stop)
        finally:
            os._exit(0)

    def end(self) -> None:
        """Stop watching."""
        if self._pid:
            orphans.end_service(self._pid)
            self._pid = 0
        shutil.rmtree(self._folder, ignore_errors=True)

    def _written(self) -> int:
        count: int = _COUNT.unpack_from(self._shared, 0)[0]
        return count

    def _note_stop(self, reason: str) -> None:
        self._shared[_MARK] = 1
        log.warning(f"The script is {reason}.")


def asked_for(environ: Mapping[str, str], results: Sequence[str]) -> ScriptWatch | None:
    """Return the watch that the environment asks for; None for none."""
    seconds, _, on_hang = environ.get(VARIABLE, "").partition(" ")
    try:
        return ScriptWatch(float(seconds), on_hang or hung_program.REPORT, results) if seconds else None
    except ValueError:
        log.warning(f"The script is not watched for hangs: {VARIABLE} is not SECONDS report|stop.")
        return None
