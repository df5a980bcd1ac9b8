"""Write logs to a stream, each line with its replica: as text, as JSON, or equal lines only once.

`LogWriter` works on blocks of many lines, not on single lines: a million lines take well under a second.
The role of a block may stand behind its job's handle, as ``HANDLE/ROLE``.
"""

from __future__ import annotations

import codecs
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event, Lock, Thread
from typing import BinaryIO, TextIO

from shunter.cli.console import BLUE, CYAN, GREEN, MAGENTA, YELLOW, output_failed
from shunter.schedulers.responses import LogBlock
from shunter.terminal import clean

#: Returns the time of a line, in nanoseconds since the epoch, as text.
Stamp = Callable[[float], str]

_PALETTE = (CYAN, GREEN, YELLOW, MAGENTA, BLUE, "96", "92", "93", "95", "94")


def bytes_of(stream: TextIO) -> BinaryIO:
    """Return what takes the bytes of a text stream, which in notebooks and under tests may be text only."""
    return getattr(stream, "buffer", None) or _TextOnly(stream)  # type: ignore[return-value]


class _TextOnly:
    """Takes bytes for a stream that takes text; a character may be cut between two writes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.flush = stream.flush

    def write(self, data: bytes) -> int:
        self._stream.write(self._decoder.decode(data))
        return len(data)


def time_text(time_ns: float, utc: bool) -> str:
    """Return a time as ISO 8601, to the millisecond, in local time or UTC; ``-`` if it is 0: not known."""
    if not time_ns:
        return "-"
    moment = datetime.fromtimestamp(int(time_ns) // 1000 / 1e6, UTC)
    text = (moment if utc else moment.astimezone()).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z") if utc else text


class _Writer:
    """Writes blocks as they arrive, until there are no more."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write_all(self, blocks: Iterable[LogBlock]) -> None:
        """Write blocks until there are no more.

        Raises:
            OutputClosed: the reader has closed the stream.
        """
        for block in blocks:
            self.write(block)

    def write(self, block: LogBlock) -> None:
        """Write a block and flush it. See `write_all`."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write what is left when there are no more blocks."""
        raise NotImplementedError

    def _write(self, pieces: Iterable[bytes]) -> None:
        try:
            for piece in pieces:
                self._stream.write(piece)
            self._stream.flush()
        except OSError as error:
            output_failed(error)


class LogWriter(_Writer):
    r"""Writes the lines as they are, each behind the name of its replica.

    A line ends in ``\n``, ``\r\n`` or, for progress bars, ``\r``. Each line gets the prefix ``ROLE/ID ``, in
    the replica's colour if ``colour`` is set, and the time if there is a ``stamp``. An unfinished line is
    ended before another replica's line.
    """

    def __init__(
        self,
        stream: BinaryIO,
        colour: bool = False,
        prefixes: bool = True,
        stamp: Stamp | None = None,
    ) -> None:
        super().__init__(stream)
        self._colour = colour
        self._prefixes = prefixes
        self._stamp = stamp
        self._known_prefixes: dict[tuple[str, int], bytes] = {}
        self._source: tuple[str, int] | None = None
        self._last = b"\n"  # the byte written last

    def write(self, block: LogBlock) -> None:
        """Write a block and flush it. See `write_all`."""
        data, source = block.data, (block.role, block.replica)
        if not data:
            return
        pieces: list[bytes] = []
        if source != self._source:
            if self._last != b"\n":
                pieces.append(b"\n")
            self._source, self._last = source, b"\n"
        elif self._last == b"\r" and data.startswith(b"\n"):  # a \r\n that was cut in the middle
            pieces.append(b"\n")
            data, self._last = data[1:], b"\n"
        if data:
            prefix = self._prefix(source)
            if self._stamp is not None:
                prefix += f"{self._stamp(block.time_ns)} ".encode()
            if self._last in (b"\n", b"\r"):
                pieces.append(prefix)
            pieces.append(prefix.join(data.splitlines(keepends=True)) if prefix else data)
            self._last = data[-1:]
        self._write(pieces)

    def finish(self) -> None:
        """End an unfinished last line, unless lines are written without prefixes."""
        if self._last not in (b"\n", b"\r") and self._prefixes:
            self._write([b"\n"])
            self._last = b"\n"

    def _prefix(self, source: tuple[str, int]) -> bytes:
        if not self._prefixes:
            return b""
        if source not in self._known_prefixes:
            name = f"{_shown(source[0])}/{source[1]}"
            if self._colour:
                name = f"\x1b[{_PALETTE[len(self._known_prefixes) % len(_PALETTE)]}m{name}\x1b[0m"
            self._known_prefixes[source] = f"{name} ".encode()
        return self._known_prefixes[source]


def _shown(role: str) -> str:
    """Return ``ROLE``, or ``JOB/ROLE`` for a role behind a handle."""
    return clean("/".join(role.split("/")[-2:]))


class _LineWriter(_Writer):
    """Splits blocks into lines without their ends, which subclasses write."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        # the unfinished last line of each replica, and its time
        self._rests: dict[tuple[str, int], tuple[bytes, float]] = {}

    def write(self, block: LogBlock) -> None:
        """Write the whole lines of a block. See `write_all`."""
        source = (block.role, block.replica)
        rest, _ = self._rests.pop(source, (b"", 0))
        *lines, rest = (rest + block.data).split(b"\n")
        if rest:
            self._rests[source] = (rest, block.time_ns)
        self._write_lines(source, [line.removesuffix(b"\r") for line in lines], block.time_ns)

    def finish(self) -> None:
        """Write the unfinished last lines."""
        for source, (line, time_ns) in self._rests.items():
            self._write_lines(source, [line.removesuffix(b"\r")], time_ns)
        self._rests.clear()

    def _write_lines(self, source: tuple[str, int], lines: list[bytes], time_ns: float) -> None:
        raise NotImplementedError


class JsonLogWriter(_LineWriter):
    """Writes each line as a JSON object with ``role``, ``replica`` and ``line``, one per line, in ASCII.

    ``line`` is the text without its line end; invalid UTF-8 becomes U+FFFD. With a ``stamp`` there is also a
    ``time``, null if unknown, and for a role behind a handle the handle as ``job``.
    """

    def __init__(self, stream: BinaryIO, stamp: Stamp | None = None) -> None:
        super().__init__(stream)
        self._stamp = stamp

    def _write_lines(self, source: tuple[str, int], lines: list[bytes], time_ns: float) -> None:
        job, _, role = source[0].rpartition("/")
        facts: dict[str, str | int | None] = {"job": job} if job else {}
        facts |= {"role": role, "replica": source[1]}
        if self._stamp is not None:
            facts["time"] = self._stamp(time_ns) if time_ns else None
        texts = (line.decode("utf-8", "replace") for line in lines)
        self._write(f"{json.dumps(facts | {'line': text})}\n".encode() for text in texts)


@dataclass
class _Line:
    """A line, when it was first seen, and the replicas that have written it."""

    role: str
    text: bytes
    since: float
    replicas: set[int] = field(default_factory=set)

    def to_bytes(self) -> bytes:
        """Return the line behind ``ROLE/3`` for one replica, ``ROLE[0-3,7]`` for several."""
        numbers = sorted(self.replicas)
        if len(numbers) == 1:
            return f"{_shown(self.role)}/{numbers[0]} ".encode() + self.text + b"\n"
        spans: list[list[int]] = []
        for number in numbers:
            if spans and number == spans[-1][1] + 1:
                spans[-1][1] = number
            else:
                spans.append([number, number])
        ranges = ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in spans)
        return f"{_shown(self.role)}[{ranges}] ".encode() + self.text + b"\n"


class CollapsingLogWriter(_LineWriter):
    """Writes what several replicas of a role wrote once: ``ROLE[0-63] LINE``, in the order of the first.

    Lines are held back until every replica has written them, the window has passed, or many wait.

    Args:
        replicas: role and index of each replica whose log is read.
        window: how long a line waits for the other replicas, in seconds; None: until the log ends.
    """

    MOST_HELD = 20_000

    def __init__(self, stream: BinaryIO, replicas: Iterable[tuple[str, int]], window: float | None) -> None:
        super().__init__(stream)
        self._sizes = Counter(role for role, _ in replicas)
        self._window = window
        self._held: deque[_Line] = deque()
        self._waiting: dict[tuple[str, bytes], deque[_Line]] = {}
        self._lock, self._finished = Lock(), Event()
        self._clock = Thread(target=self._release_in_time, daemon=True)
        if window is not None:
            self._clock.start()

    def finish(self) -> None:
        """Write the lines that are held back, and the unfinished last lines."""
        self._finished.set()
        if self._window is not None:
            self._clock.join()
        super().finish()
        self._release(everything=True)

    def _write_lines(self, source: tuple[str, int], lines: list[bytes], time_ns: float) -> None:
        role, replica = source
        with self._lock:
            for text in lines:
                same = self._waiting.setdefault((role, text), deque())
                line = next((line for line in same if replica not in line.replicas), None)
                if line is None:
                    line = _Line(role, text, time.monotonic())
                    same.append(line)
                    self._held.append(line)
                line.replicas.add(replica)
            self._release()

    def _release(self, everything: bool = False) -> None:
        """Write the lines at the head for which nothing more is expected."""
        now, pieces = time.monotonic(), []
        while self._held:
            line = self._held[0]
            is_late = self._window is not None and now - line.since >= self._window
            is_whole = len(line.replicas) >= self._sizes.get(line.role, 1)
            if not (everything or is_whole or is_late or len(self._held) > self.MOST_HELD):
                break
            self._held.popleft()
            same = self._waiting[line.role, line.text]
            same.popleft()
            if not same:
                del self._waiting[line.role, line.text]
            pieces.append(line.to_bytes())
        if pieces:
            self._write(pieces)

    def _release_in_time(self) -> None:
        while not self._finished.wait((self._window or 0) / 2):
            with self._lock:
                self._release()
