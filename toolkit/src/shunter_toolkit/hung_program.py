"""Watches a program from a separate process; without output, results or GPU activity for a while, it hangs.

Then the stacks of its processes are written to its log, and a file says that it hangs. The program continues
or is stopped.
"""

from __future__ import annotations

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
        logs: files that it writes its output to; the stacks are appended to the last one.
        seconds: how long it may show no sign of life before it counts as hung.
        results: a folder that it writes results to; "" for none.
        mark: a file that says in words that the program hangs, or that it did.
    """

    def __init__(self, pid: int, logs: Sequence[str], seconds: float, results: str, mark: str) -> None:
        self.pid = pid
        self.logs = logs
        self.seconds = seconds
        self.results = results
        self.mark = mark
        self._alive = time.time()
        self._dumped = 0.0
        self.hangs = False

    def look(self) -> bool:
        """Check once; returns whether this check found that the program hangs."""
        silent = time.time() - self.last_sign()
        if self.hangs:
            if silent < self.seconds:
                self.hangs = False
                self.note("it shows activity again after it had hung")
            return False
        if silent < self.seconds:
            return False
        found = f"no output for {self.seconds:g} s and no GPU activity"
        if self.show_stacks(found) == stack_dump.GPU_AT_WORK:
            self._alive = time.time()
            return False
        self.hangs = True
        self.note(f"it hangs: {found}; its log has the stacks")
        return True

    def show_stacks(self, headline: str) -> int:
        """Append the stacks to the log, unless a GPU is at work; returns an exit code of `stack_dump`."""
        code = stack_dump.main(stack_dump.DUMP, self.pid, self.logs[-1], headline)
        self._dumped = max(map(changed, self.logs))
        return code

    def last_sign(self) -> float:
        """Return when the program gave its last sign of life, seconds since the epoch."""
        written = [when for when in map(changed, self.logs) if when > self._dumped]
        return max([self._alive, *written, newest_below(self.results) if self.results else 0.0])

    def note(self, text: str) -> None:
        """Write a text to the file ``mark``, which is replaced atomically."""
        if not self.mark:
            return
        partial = f"{self.mark}.{os.getpid()}.tmp"
        try:
            with open(partial, "w", encoding="utf-8") as file:
                file.write(f"note={text}\ntime={time.time():.3f}\n")
            os.replace(partial, self.mark)
        except OSError:  # the stacks are in the log anyway
            pass

    def stop(self, grace: float, pause: Callable[[float], object] = time.sleep) -> None:
        """Ask the program and everything that it started to end, and kill them after the grace period."""
        deadline = time.monotonic() + grace
        everything = [self.pid, *stack_dump.descendants_of(self.pid)]
        _send(everything, signal.SIGTERM)
        while _lives(self.pid) and time.monotonic() < deadline:
            pause(0.2)
        if _lives(self.pid):
            _send([*everything, *stack_dump.descendants_of(self.pid)], signal.SIGKILL)


class PipedProgram(HungProgram):
    """A program whose output passes through a process that counts it.

    Args:
        pid: the program.
        seconds: how long it may show no sign of life before it counts as hung.
        results: folders that it writes results to.
        written: returns how much it has written so far.
        output: a descriptor that the stacks go to.
        say: called with a text that says what was found.
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
        super().__init__(pid, [], seconds, "", "")
        self._folders = list(results)
        self._written = written
        self._output = output
        self._say = say
        self._seen = written()

    def show_stacks(self, headline: str) -> int:
        """Write the stacks, unless a GPU is at work; returns an exit code of `stack_dump`."""
        if stack_dump.gpu_at_work(os.environ.get("CUDA_VISIBLE_DEVICES")):
            return stack_dump.GPU_AT_WORK
        stack_dump.write_stacks(self.pid, self._output, headline, self._written)
        self._seen = self._written()  # the stacks are no sign of life
        return stack_dump.DUMPED

    def last_sign(self) -> float:
        """Return when the program last showed a sign of life, as noticed by the checks so far."""
        now = self._written()
        if now != self._seen:
            self._seen, self._alive = now, time.time()
        return max([self._alive, *map(newest_below, self._folders)])

    def note(self, text: str) -> None:
        """Say what was found."""
        self._say(text)


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
    options: dict[str, list[str]] = {}
    left = list(words)
    while left and left[0].startswith("--") and len(left) > 1:
        options.setdefault(left.pop(0)[2:], []).append(left.pop(0))
    if len(left) != 2 or not options.get("log"):
        return 2
    seconds, pid = float(left[0]), int(left[1])
    one = {name: values[-1] for name, values in options.items()}
    program = HungProgram(pid, options["log"], seconds, one.get("results", ""), one.get("mark", ""))

    def leave_reason(text: str) -> None:
        if "reason" in one:
            with open(one["reason"], "w", encoding="utf-8") as file:
                file.write(text)

    watch(program, one.get("on-hang", REPORT), float(one.get("grace", "60")), leave_reason)
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
