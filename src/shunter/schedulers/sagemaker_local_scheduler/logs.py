"""Logs of hosts: a file of lines, and an index of when they were written.

A log is called what CloudWatch calls it: ``algo-1-1700000000000``, the host and the milliseconds at which its
attempt began. ``NAME.log`` holds the bytes, ``NAME.times`` pairs of a length of the file and the time
(milliseconds since the epoch) by which it had been reached.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from shunter.schedulers.api import LogBlock, LogPart, LogQuery, LogRange
from shunter.schedulers.lines import LineFilter, last_lines, start_of_last_lines
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor.log_ranges import AttemptRanges, LogRanges, NoFile, NoIndex
from shunter.schedulers.supervisor.log_reader import GrowingFile

Key = tuple[str, int]

State = dict[str, Any]

_PAIR = struct.Struct("=QQ")
#: How exact the times of lines are.
TICK_SECONDS = 0.05
BLOCK = 256 << 10
#: How often a follower looks for new lines.
POLL_SECONDS = 0.1
#: CloudWatch cuts longer events: 256 KiB less what it counts for itself.
LONGEST_EVENT = (256 << 10) - 26


class Timekeeper:
    """Writes the times indexes of logs while programs write the logs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, int] = {}
        self._last = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="timekeeper", daemon=True)
        self._thread.start()

    def add(self, path: str) -> None:
        """Watch a log; ``path`` is without its ending."""
        with self._lock:
            self._logs[path] = 0

    def close(self) -> None:
        """Record the last growth."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(TICK_SECONDS):
            self._record()
        self._record()

    def _record(self) -> None:
        with self._lock:
            # times never decrease, even if the clock is set back: readers bisect
            now = self._last = max(self._last, time.time_ns() // 1_000_000)
            for path, known in self._logs.items():
                size = size_of(f"{path}.log")
                if size > known and _append(f"{path}.times", _PAIR.pack(size, now)):
                    self._logs[path] = size


def _append(path: str, pair: bytes) -> bool:
    """Append a pair to a file, whole or not at all; returns whether the disk had space for it."""
    try:
        with open(path, "ab", buffering=0) as file:
            end = file.tell()
            if file.write(pair) == len(pair):
                return True
            file.truncate(end)
    except OSError:  # a full disk: it is tried again
        pass
    return False


class LogLine(NamedTuple):
    """A line: where it begins and ends in the log, its time in milliseconds, and its bytes."""

    start: int
    end: int
    time_ms: int
    data: bytes


class Log:
    """Reads one log, which is given by its path without an ending."""

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

    def _times(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return how it has grown: sizes, and the times by which they had been reached. Both only grow.

        They are not copied: there may be twenty a second, for days.
        """
        try:
            with open(f"{self.path}.times", "rb") as file:
                data = file.read()
        except FileNotFoundError:
            data = b""
        numbers = memoryview(data)[: len(data) // _PAIR.size * _PAIR.size].cast("Q")
        return numbers[::2], numbers[1::2]

    def span(self) -> tuple[int, int] | None:
        """Return the times of its first and its last line; None if it is empty."""
        times = self._times()[1]
        return (times[0], times[-1]) if len(times) else None

    def _chunks(self, start: int) -> Iterator[bytes]:
        try:
            file = open(f"{self.path}.log", "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            return
        with file:
            file.seek(start)
            while data := file.read(BLOCK):
                yield data

    def pieces(self, start: int, is_complete: bool) -> Iterator[tuple[int, int, bytes]]:
        """Yield whole lines from a place on, with place and time; all lines of a piece have one time."""
        clock = _Clock(*self._times(), self.created_ms)
        for place, data in self._blocks(start, is_complete):
            while data:
                time_ms = clock.at(place)
                cut = data.rfind(b"\n", 0, min(clock.end - place, len(data))) + 1
                piece = data[:cut] if cut else data[: data.find(b"\n") + 1] or data
                yield place, time_ms, piece
                place += len(piece)
                data = data[len(piece) :]

    def _blocks(self, start: int, is_complete: bool) -> Iterator[tuple[int, bytes]]:
        """Yield whole lines from a place on, in blocks with their places; the last line may lack its end."""
        held = b""
        for data in self._chunks(start):
            held += data
            cut = held.rfind(b"\n") + 1
            if cut:
                yield start, held[:cut]
                start += cut
                held = held[cut:]
        if held and is_complete:
            yield start, held

    def events(self, start: int, is_complete: bool) -> Iterator[LogLine]:
        """Yield the lines from a place on, long ones in parts.

        If the log is still growing, only lines whose time is known, so that their times never change.
        """
        sizes, times = self._times()
        clock = _Clock(sizes, times, self.created_ms)
        known = sizes[-1] if len(sizes) else 0
        for place, data in self._lines(start, is_complete):
            if place >= known and not is_complete:
                return
            yield LogLine(place, place + len(data), clock.at(place), data)

    def _lines(self, start: int, is_complete: bool) -> Iterator[tuple[int, bytes]]:
        """Yield lines and parts of long ones, with their places; never more than a block is held."""
        held = b""
        for data in self._chunks(start):
            *lines, held = (held + data).split(b"\n")  # only at line feeds: a progress bar is one line
            for line in lines:
                while len(line) > LONGEST_EVENT:
                    part, line = _cut(line)
                    yield start, part
                    start += len(part)
                yield start, line + b"\n"
                start += len(line) + 1
            while len(held) > LONGEST_EVENT:
                part, held = _cut(held)
                yield start, part
                start += len(part)
        if held and is_complete:
            yield start, held

    def boundary(self, time_ms: int, is_complete: bool) -> int:
        """Return the place up to which everything was written before a time.

        In a log that still grows it is at most the last place whose time is known.
        """
        sizes, times = self._times()
        index = bisect.bisect_left(times, time_ms)
        if index == len(times) and is_complete:
            return self.size
        return sizes[index - 1] if index else 0

    def line_start(self, place: int) -> int:
        """Return where the line begins that a place is within, or at the end of."""
        return self.start_of_last(1, place) if place else 0

    def start_of_last(self, count: int, end: int) -> int:
        """Return where the last ``count`` lines before ``end`` begin."""
        try:
            with open(f"{self.path}.log", "rb", buffering=0) as file:
                return start_of_last_lines(functools.partial(os.pread, file.fileno()), count, end)
        except FileNotFoundError:
            return 0


class _Clock:
    """Tells when the byte at a place was written. Places must not decrease.

    Attributes:
        end: where the time of the last place ends; a very large number if that is not known.
    """

    def __init__(self, sizes: Sequence[int], times: Sequence[int], begun: int) -> None:
        self._sizes, self._times = sizes, times
        self.end, self._time = 0, begun

    def at(self, place: int) -> int:
        if place >= self.end:
            index = bisect.bisect_right(self._sizes, place)
            if index < len(self._sizes):
                self.end, self._time = self._sizes[index], self._times[index]
            else:
                self.end, self._time = 1 << 62, self._times[-1] if len(self._times) else self._time
        return self._time


def _cut(line: bytes) -> tuple[bytes, bytes]:
    """Cut the longest possible event off a line, between two characters of UTF-8."""
    end = LONGEST_EVENT
    for back in range(1, 4):
        if line[end] & 0xC0 != 0x80:
            break
        if line[LONGEST_EVENT - back] & 0xC0 != 0x80:
            end = LONGEST_EVENT - back
            break
    return line[:end], line[end:]


def size_of(path: str) -> int:
    """Return the size of a file, 0 without one."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def stream_name(host: str) -> str:
    """Return the log name of a host's attempt that begins now."""
    return f"{host}-{time.time_ns() // 1_000_000}"


# ---- for schedulers: all attempts of many hosts, once or following


class HostLog:
    """The logs of a host's attempts, one after the other, as they grow."""

    def __init__(self, job: TrainingJob, host: str) -> None:
        self._job = job
        self._host = host
        self._at = 0
        self._place = 0

    def parts(self, state: State, is_over: bool) -> Iterator[tuple[int, bytes]]:
        """Yield what is new: whole lines with the time, in milliseconds, by which they were written."""
        host = next(host for host in state["hosts"] if host["name"] == self._host)
        streams = host["streams"]
        while self._at < len(streams):
            is_last = self._at == len(streams) - 1
            log = Log(self._job.log_path(streams[self._at]))
            for place, time_ms, data in log.pieces(self._place, is_over or not is_last):
                self._place = place + len(data)
                yield time_ms, data
            if is_last:
                return
            self._at, self._place = self._at + 1, 0


def read(
    hosts: dict[Key, HostLog],
    query: LogQuery,
    current_state: Callable[[], tuple[State, bool]],
) -> Iterator[LogBlock]:
    """Yield the lines of hosts, in order of time.

    ``current_state`` gives the job's state, and whether it has ended.
    """
    wanted = LineFilter(query)
    count = query.last
    while True:
        state, over = current_state()
        sources = [_parts_with_key(key, log, state, over) for key, log in hosts.items()]
        parts = heapq.merge(*sources, key=lambda item: item[0])
        blocks = (
            LogBlock(*key, wanted.select_at(time_ms * 1e6, data), time_ms * 1e6)
            for time_ms, key, data in parts
        )
        yield from last_lines(blocks, count, hosts)
        count = None
        if over or not query.should_tail or wanted.is_past(time.time_ns()):
            return
        time.sleep(POLL_SECONDS)


def _parts_with_key(key: Key, log: HostLog, state: State, is_over: bool) -> Iterator[tuple[int, Key, bytes]]:
    return ((time_ms, key, data) for time_ms, data in log.parts(state, is_over))


def read_part(job: TrainingJob, host: str, state: State, wanted: LogRange) -> LogPart:
    """Return a part of the log of a host."""
    streams: list[str] = next((known["streams"] for known in state["hosts"] if known["name"] == host), [])
    files = {number: GrowingFile(f"{job.log_path(name)}.log") for number, name in enumerate(streams)}
    return AttemptRanges(
        {number: LogRanges((file, NoFile()), NoIndex(), None) for number, file in files.items()}
    ).read(wanted)
