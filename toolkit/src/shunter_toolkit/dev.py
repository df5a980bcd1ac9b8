"""Keeps an interactive job (``shunter dev``) until nobody uses it: ``python -m shunter_toolkit dev``.

The job is in use when somebody types in one of its terminals, or when its processes use a CPU or a GPU. An
open terminal alone does not count, nor does a process that waits: a forgotten shell, ``sleep``, idle
notebook or ``htop`` must not hold a GPU over night.

Sessions come from outside, by ``docker exec``, ``srun --overlap``, ssh. They are recognised by the job's
variable in their environment, and nothing has to be tidied up after one that is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence

from . import kernel, log
from .aliases import JOB_VARIABLE
from .process_table import Process, environment_of, processes, with_descendants
from .usage_log import gpu_usage

#: Shares from which on a CPU or a GPU is in use. An idle JupyterLab needs less than 0.1 % of a CPU.
CPU_SHARE, GPU_PERCENT = 0.05, 5.0
#: Most seconds between two looks, and how many looks a short idle time has.
LONGEST_PAUSE, LOOKS = 15.0, 20
#: The kernel notes when a key was typed to these seconds.
TERMINAL_GRAIN = 8.0
#: Open terminals are warned when this share of the idle time is left, or these seconds if they are less.
WARNING_SHARE, WARNING_SECONDS = 0.2, 300.0


def main(words: Sequence[str]) -> int:
    """Wait until the job is idle; return the exit code.

    Args:
        words: ``--idle SECONDS``, how long it may be unused; 0 for ever.
    """
    idle = float(words[1])
    if not kernel.IS_LINUX:
        log.error("A dev job needs Linux, which shows whether its processes are in use.")
        return 1
    signal.signal(signal.SIGTERM, _leave)
    print(f"ready; ends when it has not been used for {idle:g} s" if idle else "ready", flush=True)
    use = Use()
    try:
        _await_idleness(use, idle)
    finally:
        use.end_sessions()
    log.warning(f"it ended because it was idle: for {idle:g} s nobody typed, and no CPU or GPU was used")
    return 0


def _leave(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _await_idleness(use: Use, idle: float) -> None:
    pause = min(LONGEST_PAUSE, idle / LOOKS) or LONGEST_PAUSE
    last, warned = time.monotonic(), False
    while True:
        time.sleep(pause)
        if not idle:
            continue
        last = max(last, use.last())
        left = idle - (time.monotonic() - last)
        if left <= 0:
            return
        is_late = left <= min(idle * WARNING_SHARE, WARNING_SECONDS)
        if is_late and not warned:
            use.tell(f"this job is idle, and ends in {left:.0f} s unless you type or something runs")
        warned = is_late


class Use:
    """Looks at how the job is used."""

    def __init__(self) -> None:
        self._mark = os.fsencode(f"{JOB_VARIABLE}={os.environ.get(JOB_VARIABLE, '')}")
        self._at = time.monotonic()
        self._members = self._look()

    def last(self) -> float:
        """Return when the job was last seen in use, in seconds of `time.monotonic`."""
        before, since = self._members, self._at
        self._members, self._at = self._look(), time.monotonic()
        spent = 0.0
        for pid, process in self._members.items():
            earlier = before.get(pid)
            spent += max(0.0, process.cpu_seconds - (earlier.cpu_seconds if earlier else 0.0))
        if spent > CPU_SHARE * (self._at - since) or any(busy > GPU_PERCENT for busy, _ in gpu_usage()):
            return self._at
        typed = max((found.st_atime for found in self._terminals().values()), default=0.0)
        return self._at - max(0.0, time.time() - typed - TERMINAL_GRAIN)

    def tell(self, text: str) -> None:
        """Write a line to all terminals of the job."""
        for path in self._terminals():
            with contextlib.suppress(OSError):
                terminal = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
                try:
                    os.write(terminal, f"\r\nshunter: {text}\r\n".encode())
                finally:
                    os.close(terminal)

    def end_sessions(self) -> None:
        """Ask all processes of the job to end. A shell on a terminal heeds SIGHUP only."""
        for pid, process in self._look().items():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGHUP if process.terminal else signal.SIGTERM)

    def _look(self) -> dict[int, Process]:
        """Return the processes of the job, but for this one and those above it."""
        table = processes()
        marked = [pid for pid in table if self._mark in environment_of(pid)]
        above = set(_line_of(os.getpid(), table))
        family = with_descendants((pid for pid in marked if pid not in above), table)
        return {pid: table[pid] for pid in family if pid in table}

    def _terminals(self) -> dict[str, os.stat_result]:
        """Return a path to each terminal, and its status: it was last accessed when a key was read."""
        found: dict[int, tuple[str, os.stat_result]] = {}
        for pid, process in self._members.items():
            if process.terminal and process.terminal not in found:
                path = f"{kernel.PROC}/{pid}/fd/0"
                with contextlib.suppress(OSError):  # it has ended, or its stdin is closed
                    status = os.stat(path)
                    if status.st_rdev == process.terminal:
                        found[process.terminal] = (path, status)
        return dict(found.values())


def _line_of(pid: int, table: Mapping[int, Process]) -> Iterable[int]:
    """Yield a process, its parent, and so on."""
    while pid in table:
        yield pid
        pid = table[pid].parent
