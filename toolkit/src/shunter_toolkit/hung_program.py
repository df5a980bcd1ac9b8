"""Watches a program from a separate process; without output, results or GPU activity for a while, it hangs.

Then the stacks of its processes are written to its log, and a file says that it hangs. The program continues
or is stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence

from . import stack_dump

#: What is done with a program that hangs.
REPORT, STOP = "report", "stop"
#: Checks within the time after which a program counts as hung; most seconds between two checks.
LOOKS, LONGEST_PAUSE = 8, 15.0
#: Most files of results that are looked at.
MOST_FILES = 10_000


class HungProgram:
    """The watch over one program.

    Args:
        pid: the program; processes that it starts are looked at with it.
        seconds: how long it may show no sign of life before it counts as hung.
        results: folders that it writes results to.
        written: returns how much it has written so far.
        output: a descriptor that the stacks go to.
        say: called with a text that says that it hangs, or that it did.
    """

    def __init__(
        self,
        pid: int,
        seconds: float,
        results: Sequence[str],
        written: Callable[[], int],
        output: int,
        say: Callable[[str], object],
    ) -> None:
        self.pid = pid
        self.seconds = seconds
        self.hangs = False
        self._results = list(results)
        self._written = written
        self._output = output
        self._say = say
        self._seen = written()
        self._alive = time.time()

    def look(self) -> bool:
        """Check once; returns whether this check found that the program hangs."""
        is_silent = time.time() - self._last_sign() >= self.seconds
        if self.hangs and not is_silent:
            self.hangs = False
            self._say("it shows activity again after it had hung")
        if self.hangs or not is_silent:
            return False
        if stack_dump.gpu_at_work(os.environ.get("CUDA_VISIBLE_DEVICES")):
            self._alive = time.time()
            return False
        headline = f"no output for {self.seconds:g} s and no GPU activity"
        stack_dump.write_stacks(self.pid, self._output, headline, self._written)
        self._seen = self._written()  # the stacks are no sign of life
        self.hangs = True
        self._say(f"it hangs: {headline}; its log has the stacks")
        return True

    def _last_sign(self) -> float:
        """Return when the program last showed a sign of life, as noticed by the checks so far."""
        now = self._written()
        if now != self._seen:
            self._seen, self._alive = now, time.time()
        return max([self._alive, *map(newest_below, self._results)])

    def stop(self, grace: float, pause: Callable[[float], object] = time.sleep) -> None:
        """Ask the program and everything that it started to end, and kill them after the grace period."""
        deadline = time.monotonic() + grace
        everything = [self.pid, *stack_dump.descendants_of(self.pid)]
        _send(everything, signal.SIGTERM)
        while _lives(self.pid) and time.monotonic() < deadline:
            pause(0.2)
        if _lives(self.pid):
            _send([*everything, *stack_dump.descendants_of(self.pid)], signal.SIGKILL)


def watch(program: HungProgram, on_hang: str, grace: float, stopping: Callable[[str], object]) -> None:
    """Watch a program to its end, or until it is stopped.

    Args:
        program: the program.
        on_hang: `REPORT` or `STOP`.
        grace: seconds that it has to end when it is stopped.
        stopping: called with the reason just before it is stopped.
    """
    while _lives(program.pid):
        if program.look() and on_hang == STOP:
            # first let replicas that wait for it show their stacks
            time.sleep(min(program.seconds, LONGEST_PAUSE))
            stopping(stop_reason(program.seconds))
            program.stop(grace)
            return
        time.sleep(min(program.seconds / LOOKS, LONGEST_PAUSE))


def stop_reason(seconds: float) -> str:
    """Return in words why a program was stopped."""
    return f"stopped because it hung: no output for {seconds:g} s"


def main(words: Sequence[str]) -> int:
    """Watch a program to its end: ``[OPTION VALUE]... SECONDS PID``, options as in the usage of `cli`.

    The file of ``--reason`` gets why the program was stopped, in words.
    """
    parser = argparse.ArgumentParser(prog="watch")
    parser.add_argument("--log", action="append", required=True)
    for name in ("--results", "--mark", "--reason"):
        parser.add_argument(name, default="")
    parser.add_argument("--on-hang", default=REPORT, choices=(REPORT, STOP))
    parser.add_argument("--grace", type=float, default=60.0)
    parser.add_argument("seconds", type=float)
    parser.add_argument("pid", type=int)
    args = parser.parse_args(words)

    def mark(text: str) -> None:
        _replace(args.mark, f"note={text}\ntime={time.time():.3f}\n")

    output = os.open(args.log[-1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    results = [args.results] if args.results else []
    program = HungProgram(args.pid, args.seconds, results, lambda: sum(map(_size, args.log)), output, mark)
    watch(program, args.on_hang, args.grace, lambda text: _replace(args.reason, text))
    return 0


def _replace(path: str, text: str) -> None:
    """Replace a file atomically, if it has a name and can be written: the stacks are in the log anyway."""
    if not path:
        return
    partial = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(OSError):
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(partial, path)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)  # a stopped process could not handle the signal
        except OSError:
            pass


def _lives(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] != [b"Z"]
    except ProcessLookupError:
        return False
    except OSError:
        return not os.path.isdir("/proc/self")


def changed(path: str) -> float:
    """Return when a file was written last; 0 if there is none."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def newest_below(folder: str) -> float:
    """Return when the last file below a folder was written, of at most `MOST_FILES` of them."""
    newest, count = 0.0, 0
    for directory, _, names in os.walk(folder):
        for name in names:
            newest = max(newest, changed(os.path.join(directory, name)))
            count += 1
            if count >= MOST_FILES:
                return newest
    return newest
