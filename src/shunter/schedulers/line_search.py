"""Lines in which a user's regular expression matches, found in bounded time.

An expression such as ``(a+)+$`` can take forever on a line that it does not match, and nothing interrupts
the search in a thread. So this process searches only short lines for simple expressions. Everything else is
left to a second process, which runs this file as a script and ends at the first line that takes too long.
"""

from __future__ import annotations

import re
import signal
import struct
import subprocess
import sys
import threading
import weakref
from subprocess import Popen

from shunter.errors import UsageError

#: CPU seconds that an expression may take on one line.
LIMIT = 2.0
#: The longest line that is searched in this process.
SHORT = 4096
_LENGTH = struct.Struct("<Q")
_TOO_LONG = (1 << 64) - 1
# Each repeat, and what refers to an earlier group, which repeats a text too.
_REPEATS = re.compile(r"[*+?{]|\\[1-9]|\(\?P=")
#: A carriage return ends a line too (a progress bar draws over it), unless a line feed follows.
LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r(?!\n|\Z)|\r\Z|\Z)")


class LineSearch:
    """Finds the lines of blocks in which a valid expression matches somewhere. Threads may share it."""

    def __init__(self, regex: str) -> None:
        self._regex = regex
        self._pattern = re.compile(regex)
        repeats = len(_REPEATS.findall(regex))
        self._is_quick = repeats == 0 or (repeats == 1 and "|" not in regex)
        self._process: Popen[bytes] | None = None
        self._lock = threading.Lock()

    def select(self, block: bytes) -> bytes:
        """Return the lines in which the expression matches, their ends included.

        Raises:
            UsageError: it takes too long on a line.
        """
        if self._is_quick and (len(block) <= SHORT or _longest_line(block) <= SHORT):
            return _matching(self._pattern, block)
        with self._lock:
            return self._ask(block)

    def _ask(self, block: bytes) -> bytes:
        search = self._process or self._start()
        assert search.stdin is not None
        assert search.stdout is not None
        try:
            search.stdin.write(_LENGTH.pack(len(block)) + block)
            search.stdin.flush()
            head = search.stdout.read(_LENGTH.size)
        except BrokenPipeError:
            head = b""
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else _TOO_LONG
        if length == _TOO_LONG:
            raise UsageError(
                f"the regular expression {self._regex!r} took more than {LIMIT:g} s on one line",
                hint="Repeat no repeats and no alternatives: a+ rather than (a+)+ or (a|aa)+.",
            )
        return search.stdout.read(length)

    def _start(self) -> Popen[bytes]:
        command = [sys.executable, "-SPE", __file__]
        search = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert search.stdin is not None
        regex = self._regex.encode("utf-8", "surrogatepass")
        search.stdin.write(_LENGTH.pack(len(regex)) + regex)
        weakref.finalize(self, search.communicate)
        self._process = search
        return search


def _longest_line(block: bytes) -> int:
    return max(map(len, block.replace(b"\r", b"\n").split(b"\n")))


def _matching(pattern: re.Pattern[str], block: bytes) -> bytes:
    return b"".join(line for line in LINE.findall(block) if line and _is_found(pattern, line))


def _is_found(pattern: re.Pattern[str], line: bytes) -> bool:
    return pattern.search(line.decode("utf-8", "replace").rstrip("\r\n")) is not None


class _Watch:
    """Raises TimeoutError when one line has taken all of the time between two ticks of a clock."""

    def __init__(self) -> None:
        self.line = 0
        self._seen = -1

    def tick(self, signum: int, frame: object) -> None:
        """Compare with the last tick."""
        if self.line == self._seen:
            raise TimeoutError
        self._seen = self.line


def _main() -> None:
    watch = _Watch()
    signal.signal(signal.SIGVTALRM, watch.tick)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its input does
    source, target = sys.stdin.buffer, sys.stdout.buffer
    regex = source.read(_LENGTH.unpack(source.read(_LENGTH.size))[0])
    pattern = re.compile(regex.decode("utf-8", "surrogatepass"))
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        block = source.read(_LENGTH.unpack(head)[0])
        found = []
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT / 2, LIMIT / 2)
        try:
            for line in LINE.findall(block):
                watch.line += 1
                if line and _is_found(pattern, line):
                    found.append(line)
        except TimeoutError:
            target.write(_LENGTH.pack(_TOO_LONG))
            target.flush()
            return
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        data = b"".join(found)
        target.write(_LENGTH.pack(len(data)) + data)
        target.flush()


if __name__ == "__main__":
    _main()
