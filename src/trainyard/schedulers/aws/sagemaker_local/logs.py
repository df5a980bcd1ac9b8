"""Logs of hosts: a file of lines as they were written, and beside it when they were.

A log is called what CloudWatch calls it: ``algo-1-1700000000000``, the host and the milliseconds at which its
attempt began. ``NAME.log`` holds the bytes, ``NAME.times`` pairs of a length of the file and the time
(milliseconds since the epoch) by which it had been reached.
"""

from __future__ import annotations

import os
import struct
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainyard.schedulers.aws.sagemaker_local.store import JobDir

_PAIR = struct.Struct("<QQ")
#: How exact the times of lines are.
TICK_SECONDS = 0.05
BLOCK = 256 << 10
#: CloudWatch cuts longer events: 256 KiB less what it counts for itself.
LONGEST_EVENT = (256 << 10) - 26


class Timekeeper:
    """Notes how logs grow while they are written, whoever writes them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, int] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timekeeper", daemon=True)
        self._thread.start()

    def add(self, path: str) -> None:
        """Watch a log; ``path`` is without its ending."""
        with self._lock:
            self._logs[path] = 0

    def close(self) -> None:
        """Note the last of it."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(TICK_SECONDS):
            self._note()
        self._note()

    def _note(self) -> None:
        now = time.time_ns() // 1_000_000
        with self._lock:
            for path, known in self._logs.items():
                size = size_of(f"{path}.log")
                if size > known:
                    with open(f"{path}.times", "ab") as file:
                        file.write(_PAIR.pack(size, now))
                    self._logs[path] = size


class Event:
    """A line: where it begins and ends in the log, its time in milliseconds, and its bytes."""

    __slots__ = ("data", "end", "start", "time_ms")

    def __init__(self, start: int, end: int, time_ms: int, data: bytes) -> None:
        self.start = start
        self.end = end
        self.time_ms = time_ms
        self.data = data


class Log:
    """Reads one log.

    Args:
        path: its path without an ending.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def created_ms(self) -> int:
        """When its attempt began."""
        return int(self.path.rpartition("-")[2])

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return size_of(f"{self.path}.log")

    def times(self) -> list[tuple[int, int]]:
        """Return the pairs of length and time."""
        try:
            with open(f"{self.path}.times", "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return []
        return list(_PAIR.iter_unpack(data[: len(data) // _PAIR.size * _PAIR.size]))

    def blocks(self, start: int, is_complete: bool) -> Iterator[tuple[int, bytes]]:
        """Yield whole lines from a place on, in blocks with their places; the last one may lack its end."""
        try:
            file = open(f"{self.path}.log", "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            return
        with file:
            file.seek(start)
            held = b""
            while data := file.read(BLOCK):
                held += data
                cut = held.rfind(b"\n") + 1
                if cut:
                    yield start, held[:cut]
                    start += cut
                    held = held[cut:]
            if held and is_complete:
                yield start, held

    def pieces(self, start: int, is_complete: bool) -> Iterator[tuple[int, int, bytes]]:
        """Yield whole lines from a place on, with their place and time; each piece is of one moment."""
        clock = _Clock(self.times(), self.created_ms)
        for place, data in self.blocks(start, is_complete):
            while data:
                time_ms = clock.at(place)
                cut = data.rfind(b"\n", 0, min(clock.end() - place, len(data))) + 1
                piece = data[:cut] if cut else data[: data.find(b"\n") + 1] or data
                yield place, time_ms, piece
                place += len(piece)
                data = data[len(piece) :]

    def events(self, start: int, is_complete: bool) -> Iterator[Event]:
        """Yield the lines from a place on."""
        clock = _Clock(self.times(), self.created_ms)
        for place, data in self.blocks(start, is_complete):
            for line in data.splitlines(keepends=True) if b"\r" not in data else _lines(data):
                for cut in range(0, len(line), LONGEST_EVENT):
                    part = line[cut : cut + LONGEST_EVENT]
                    yield Event(place, place + len(part), clock.at(place), part)
                    place += len(part)

    def start_of_last(self, count: int, end: int) -> int:
        """Return where the last ``count`` lines before ``end`` begin."""
        try:
            file = open(f"{self.path}.log", "rb")  # noqa: SIM115
        except FileNotFoundError:
            return 0
        with file:
            place, found = end, 0
            while place > 0:
                start = max(0, place - BLOCK)
                file.seek(start)
                data = file.read(place - start)
                if place == end and data.endswith(b"\n"):
                    data = data[:-1]  # the end of the last line begins no new one
                lines = data.count(b"\n")
                if found + lines >= count:
                    rest = data.rsplit(b"\n", count - found)
                    return start + len(rest[0]) + 1
                found += lines
                place = start
        return 0


class _Clock:
    """Tells when the byte at a place was written; places must not go back."""

    def __init__(self, times: list[tuple[int, int]], begun: int) -> None:
        self._times = times
        self._at = 0
        self._last = begun

    def at(self, place: int) -> int:
        while self._at < len(self._times) and self._times[self._at][0] <= place:
            self._last = self._times[self._at][1]
            self._at += 1
        return self._times[self._at][1] if self._at < len(self._times) else max(self._last, 0)

    def end(self) -> int:
        """Return where the moment of the last place ends; a very large number where that is not known."""
        return self._times[self._at][0] if self._at < len(self._times) else 1 << 62


def _lines(data: bytes) -> list[bytes]:
    r"""Split at ``\n`` alone: a progress bar is one line."""
    parts = data.split(b"\n")
    last = parts.pop()
    return [part + b"\n" for part in parts] + ([last] if last else [])


def size_of(path: str) -> int:
    """Return the size of a file, 0 without one."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def log_path(job: JobDir, stream: str) -> str:
    """Return the path of a log, without its ending."""
    return job.file("logs", stream)


def stream_name(host: str) -> str:
    """Return the name of the log of an attempt that begins now."""
    return f"{host}-{time.time_ns() // 1_000_000}"


class LineWriter:
    """Writes several streams into one log so that no line breaks into another."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._held: dict[int, bytes] = {}

    def write(self, stream: int, data: bytes) -> None:
        """Write what a stream brought, up to the end of its last whole line."""
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._held[stream] = self._held.get(stream, b"") + data
            return
        whole = self._held.pop(stream, b"") + data[:cut]
        if cut < len(data):
            self._held[stream] = data[cut:]
        self._put(whole)

    def close(self) -> None:
        """Write the rests of lines that were never ended."""
        for rest in self._held.values():
            self._put(rest + b"\n")
        self._held.clear()
        os.close(self._fd)

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
