r"""Reading the logs of replicas: one or many, one stream or both, once or following.

The index gives, for every few milliseconds, how much each file grew and the sequence of writes. Lines are
assigned to the writes. If a program uses the same number of writes for every line (one, or two as unbuffered
Python's ``print`` does), the order is exact: line i of a stream is placed at its write, and lines whose write
has not been seen yet are held back until it has. (If a flood of lines begins before this number has been
observed, it is guessed for a few milliseconds.) If a program writes blocks of many lines, only blocks that
fell into the same few milliseconds are interleaved, in proportion. The same holds for what was written while
the kernel's queue overflowed (8,192 writes before the supervisor got a share of a cpu).

Lines are never split: a line is placed where its end was written. A line ends with ``\n``, or with the ``\r``
of a progress bar. Nothing is lost or duplicated whatever the index says, since it only determines the order.
"""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from shunter.schedulers.api import LogBlock, LogQuery, Stream
from shunter.schedulers.lines import LineFilter, iter_lines, last_lines, start_of_last_lines
from shunter.schedulers.supervisor.log_index import LOG_NAMES, IndexReader, Record

#: How much is read at a time; a share of it, but not less than the least, where there are many replicas.
CHUNK = 256 << 10
CHUNKS_OF_ALL = 16 << 20
LEAST_CHUNK = 64 << 10
#: How many more lines than requested are read before the last ones, since the order takes time to settle.
MARGIN_LINES = 1000
#: A follower that finds nothing new looks at the job's state again after this many seconds.
RECHECK_SECONDS = 2.0
#: If more lines than this lack their writes, the writes are not merely late: the rhythm has changed.
MAX_LATE = 20_000
MAX_WRITES_PER_LINE = 4
FEW_LINES = 8
MAX_LINE = 16 << 20


class Part(NamedTuple):
    """Whole lines of one replica, and when they were written (nanoseconds since the epoch, to 0.25 s)."""

    time_ns: int
    data: bytes


class OutputFile(Protocol):
    """A file that grows, wherever it is."""

    def size(self) -> int:
        """Return its size; 0 if it does not exist."""

    def read(self, count: int, offset: int) -> bytes:
        """Return at most this many bytes, from an offset."""

    def close(self) -> None:
        """Close it."""


class LogIndex(Protocol):
    """Tells when both files of a log grew."""

    def new_records(self) -> Iterable[Record]:
        """Return what has been added since the last call."""

    def close(self) -> None:
        """Close it."""


class GrowingLog(Protocol):
    """The log of a replica, wherever it is; `ReplicaLog` is one."""

    index_path: str
    #: How many bytes of a stream are read at a time.
    chunk: int

    def skip_to_last(self, count: int, most_bytes: int | None = None) -> None:
        """Leave out what lies before the last ``count`` lines; some more may be left in."""

    def parts(self) -> Iterator[Part]:
        """Yield what is new."""

    def rest(self) -> Iterator[Part]:
        """Yield all that there is, when no more is asked for."""


class LogWatch(Protocol):
    """Tells which logs have grown; `JobWatch` is one."""

    #: The index paths of the logs that have grown.
    changed: set[str]

    def wait(self, timeout: float) -> None:
        """Block until some logs have grown, or ``timeout`` seconds have passed."""


class GrowingFile(OutputFile):
    """A file of this machine that may not exist yet, and grows."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def size(self) -> int:
        """Return its size; 0 if it does not exist."""
        return os.fstat(self._fd).st_size if self._is_open() else 0

    def read(self, count: int, offset: int) -> bytes:
        """Return at most this many bytes, from an offset."""
        return os.pread(self._fd, count, offset) if self._is_open() else b""

    def close(self) -> None:
        """Close it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is_open(self) -> bool:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
        return True


class ReplicaLog:
    """Reads one replica's output as it grows.

    Args:
        files: its stdout and its stderr.
        index: tells when they grew, and in which order.
        stream: which stream is wanted.
        index_path: where the index is, for those who watch it.
    """

    def __init__(
        self, files: tuple[OutputFile, OutputFile], index: LogIndex, stream: Stream, index_path: str = ""
    ) -> None:
        self.index_path = index_path
        self._wanted = {Stream.STDOUT: (0,), Stream.STDERR: (1,), Stream.COMBINED: (0, 1)}[stream]
        self._index = index
        self._merger = Merger()
        self._files = files
        self._read = [0, 0]
        self._indexed = Record(0, (0, 0))
        self._is_skipping = False
        self.chunk = CHUNK

    @classmethod
    def at(cls, log_dir: str, index_path: str, stream: Stream) -> ReplicaLog:
        """Return the log of a local replica, of which ``log_dir`` has ``stdout.log`` and ``stderr.log``."""
        files = [GrowingFile(os.path.join(log_dir, name)) for name in LOG_NAMES]
        return cls((files[0], files[1]), IndexReader(index_path), stream, index_path)

    def skip_to_last(self, count: int, most_bytes: int | None = None) -> None:
        """Leave out what lies before the last ``count`` lines of each stream; some more may be left in."""
        count = 2 * count + MARGIN_LINES
        self._read = [self._start_of_last(which, count, most_bytes) for which in (0, 1)]
        self._is_skipping = any(self._read)

    def start_at(self, offsets: tuple[int, int]) -> None:
        """Leave out what lies before these offsets of stdout and stderr."""
        self._read = list(offsets)

    def settle(self) -> tuple[bytes, tuple[int, int]]:
        """Return the whole lines that wait to be placed, and up to where both streams are read then."""
        lines = self._merger.settle()
        out, err = (end - held for end, held in zip(self._read, self._merger.partial_sizes(), strict=True))
        return lines, (out, err)

    def parts(self) -> Iterator[Part]:
        """Yield what has been recorded since the last call."""
        for record in self._index.new_records():
            self._indexed = record
            if not self._is_skipping:
                yield from self._record_parts(record)
            elif any(record.ends[i] > self._read[i] for i in self._wanted):
                self._is_skipping = False
                yield from self._record_parts(Record(record.time_ns, record.ends))

    def grown(self) -> Iterator[Part]:
        """Yield what there is since the last call: also whole lines that are not in the index yet."""
        yield from self.parts()
        out, err = self._files
        yield from self._record_parts(Record(self._time_of_rest(), (out.size(), err.size())))

    def rest(self) -> Iterator[Part]:
        """Yield all that there is, when no more is asked for."""
        yield from self.grown()
        yield Part(self._time_of_rest(), self._merger.rest())

    def _time_of_rest(self) -> int:
        """Return when what is not in the index was written: now, if there is any."""
        known = self._indexed
        grown = any(file.size() > end for file, end in zip(self._files, known.ends, strict=True))
        return time.time_ns() if grown or not known.time_ns else known.time_ns

    def close(self) -> None:
        """Close the files."""
        self._index.close()
        for file in self._files:
            file.close()

    def _record_parts(self, record: Record) -> Iterator[Part]:
        """Yield the lines that a record brings, in chunks if they are many."""
        while True:
            data = (self._grown(0, record), self._grown(1, record))
            is_last = all(self._read[i] >= record.ends[i] for i in self._wanted)
            is_ordered = is_last and len(self._wanted) == 2
            share = record if is_ordered else Record(record.time_ns, record.ends)
            lines = self._merger.add(share, data)
            if lines:
                yield Part(record.time_ns, lines)
            if is_last or not any(data):
                return

    def _grown(self, which: int, record: Record) -> bytes:
        if which not in self._wanted:
            return b""
        count = min(record.ends[which] - self._read[which], self.chunk)
        if count <= 0:
            return b""
        data = self._files[which].read(count, self._read[which])
        self._read[which] += len(data)
        return data

    def _start_of_last(self, which: int, count: int, most_bytes: int | None) -> int:
        """Return where the last ``count`` lines of a stream begin, or its last bytes if that is later."""
        if which not in self._wanted:
            return 0
        file = self._files[which]
        size = file.size()
        begin = 0 if most_bytes is None else max(0, size - most_bytes)
        return start_of_last_lines(file.read, count, size, begin)


class StreamLines:
    """The lines of one stream that wait to be placed, and how they relate to its writes.

    Attributes:
        held: whole lines without a place yet.
        partial: the beginning of a line.
        writes, lines, placed: counts since the two files and the writes were last known to be level.
        rhythm: writes per line while that was constant; 0 when it was not.
    """

    def __init__(self) -> None:
        self.held: deque[bytes] = deque()
        self.partial = b""
        self.writes = self.lines = self.placed = 0
        self.rhythm = 1

    def cut(self, data: bytes) -> bytes:
        """Append data to the partial line, return the whole lines, and keep the rest."""
        data = self.partial + data if self.partial else data
        end = _end_of_lines(data)
        if not end and len(data) > MAX_LINE:
            end = len(data)
        self.partial = data[end:]
        return data[:end]

    def hold(self, whole: bytes) -> None:
        """Hold whole lines until they are placed."""
        before = len(self.held)
        self.held.extend(iter_lines(whole))
        self.lines += len(self.held) - before

    def writes_per_line(self, *, settled: bool) -> int:
        """Return the number of writes per line if it is constant, otherwise 0."""
        if not self.lines:
            return self.rhythm or 1
        if settled:  # the counts belong together, but for a write that was just under way
            candidates = [self.rhythm, *range(1, MAX_WRITES_PER_LINE + 1)]
            fitting = (n for n in candidates if n and self.lines - self.writes // n in (0, 1))
            self.rhythm = next(fitting, 0)
            return self.rhythm
        if self.rhythm and -1 <= self.lines - self.writes // self.rhythm <= MAX_LATE:
            return self.rhythm
        # Lines may be ahead of their writes, but not behind them.
        guess = -(-self.writes // (self.lines + 1)) or 1
        late = self.lines - self.writes // guess
        return guess if guess <= MAX_WRITES_PER_LINE and late <= max(FEW_LINES, self.lines // 2) else 0

    def level(self) -> None:
        """Restart the counts at a moment at which every line has its writes."""
        self.writes = self.writes - self.rhythm * self.lines if self.rhythm else 0
        self.lines = self.placed = 0

    def lose_count(self) -> None:
        """Restart the counts, because some writes were not counted."""
        self.writes = self.lines = self.placed = 0


class Merger:
    """Merges the two streams of one replica, as their files and their index grow."""

    def __init__(self) -> None:
        self._streams = (StreamLines(), StreamLines())

    def add(self, record: Record, data: tuple[bytes, bytes]) -> bytes:
        """Return the lines that have their place now that this record and this data are known."""
        if self._is_single(record, data):
            return self._pass_through(record, data)
        for stream, grown in zip(self._streams, data, strict=True):
            if grown:
                stream.hold(stream.cut(grown))
        order = record.order or record.streams * record.writes
        placed = self._order_lines(order, settled=record.settled)
        if not record.counted:
            return b"".join(placed) + self.settle()
        if record.settled:
            placed += self._order_held_lines(record.streams)
            for stream in self._streams:
                stream.level()
        return b"".join(placed)

    def partial_sizes(self) -> tuple[int, int]:
        """Return how many bytes of a line without its end are kept of each stream."""
        out, err = (len(stream.partial) for stream in self._streams)
        return out, err

    def rest(self) -> bytes:
        """Return what is left when nothing more will come."""
        placed = self.settle()
        partial = b"".join(stream.partial for stream in self._streams)
        for stream in self._streams:
            stream.partial = b""
        return placed + partial

    def _is_single(self, record: Record, data: tuple[bytes, bytes]) -> bool:
        """Tell whether only one stream is involved, so that no order has to be determined."""
        if any(stream.held for stream in self._streams):
            return False
        grown = bytes(i for i, part in enumerate(data) if part)
        return len(grown) == 1 and record.streams in (b"", grown)

    def _pass_through(self, record: Record, data: tuple[bytes, bytes]) -> bytes:
        which = 0 if data[0] else 1
        stream = self._streams[which]
        whole = stream.cut(data[which])
        lines = _count_lines(whole)
        stream.lines += lines
        stream.placed += lines
        stream.writes += record.writes
        if not record.counted:
            stream.lose_count()
        elif record.settled:
            stream.writes_per_line(settled=True)
            stream.level()
        return whole

    def _order_lines(self, order: bytes, *, settled: bool) -> list[bytes]:
        """Lay the held lines of both streams along the sequence of writes."""
        totals = [order.count(0), order.count(1)]
        for stream, total in zip(self._streams, totals, strict=True):
            stream.writes += total
        ratios = [stream.writes_per_line(settled=settled) for stream in self._streams]
        begin = [stream.writes - total for stream, total in zip(self._streams, totals, strict=True)]
        held = [len(stream.held) for stream in self._streams]
        done = [0, 0]
        taken = [0, 0]
        result: list[bytes] = []
        for which in order:
            stream = self._streams[which]
            done[which] += 1
            if ratios[which]:
                wanted = (begin[which] + done[which]) // ratios[which] - stream.placed
            else:
                wanted = done[which] * held[which] // totals[which] - taken[which]
            for _ in range(min(wanted, len(stream.held))):
                result.append(stream.held.popleft())
                stream.placed += 1
                taken[which] += 1
        return result

    def _order_held_lines(self, order: bytes) -> list[bytes]:
        """Place all that is held, in the order in which the streams were first written to."""
        result: list[bytes] = []
        for which in dict.fromkeys(order + b"\0\1"):
            stream = self._streams[which]
            stream.placed += len(stream.held)
            result += stream.held
            stream.held.clear()
        return result

    def settle(self) -> bytes:
        """Place all that is held, in an unknown order: mix both streams evenly."""
        out, err = (stream.held for stream in self._streams)
        placed = []
        for i, line in enumerate(out):
            placed += [err.popleft() for _ in range(len(err) // (len(out) - i + 1))]
            placed.append(line)
        placed += err
        for stream in self._streams:
            stream.held.clear()
            stream.lose_count()
        return b"".join(placed)


def _end_of_lines(data: bytes) -> int:
    r"""Return where the last whole line ends. A ``\r`` at the very end may yet become ``\r\n``."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(len(data) - 1, 0))) + 1


def _count_lines(data: bytes) -> int:
    lines = data.count(b"\n")
    if b"\r" in data:
        lines += data.count(b"\r") - data.count(b"\r\n")
    return lines


def read_logs(
    logs: Mapping[tuple[str, int], GrowingLog], query: LogQuery, *, to_be_continued: bool = False
) -> Iterator[LogBlock]:
    """Yield what the replicas have written so far, in order of time.

    With ``to_be_continued``, an incomplete line and what has not been recorded yet are left to `follow_logs`.
    """
    wanted = LineFilter(query)
    if query.last is not None and query.regex is None and query.until is None:
        for log in logs.values():
            log.skip_to_last(query.last, query.most_bytes)
    parts = _in_order_of_time(logs, not to_be_continued)
    blocks = (LogBlock(*key, wanted.select_at(part.time_ns, part.data), part.time_ns) for part, key in parts)
    yield from last_lines(blocks, query.last, logs)


def _in_order_of_time(
    logs: Mapping[tuple[str, int], GrowingLog], to_the_end: bool
) -> Iterator[tuple[Part, tuple[str, int]]]:
    """Yield what is new in the logs; of each replica no more than a chunk is held at a time."""

    def parts(key: tuple[str, int], log: GrowingLog) -> Iterator[tuple[Part, tuple[str, int]]]:
        return ((part, key) for part in (log.rest() if to_the_end else log.parts()))

    for log in logs.values():
        log.chunk = max(LEAST_CHUNK, min(CHUNK, CHUNKS_OF_ALL // len(logs)))
    streams = [parts(key, log) for key, log in logs.items()]
    return streams[0] if len(streams) == 1 else heapq.merge(*streams, key=lambda item: item[0].time_ns)


def follow_logs(
    logs: Mapping[tuple[str, int], GrowingLog], query: LogQuery, watch: LogWatch, is_over: Callable[[], bool]
) -> Iterator[LogBlock]:
    """Yield what the replicas write until the job has ended and all of it has been read."""
    wanted = LineFilter(query)
    by_index = {log.index_path: key for key, log in logs.items()}
    while True:
        over = is_over()
        keys = list(logs) if over else [by_index[path] for path in watch.changed if path in by_index]
        for part, (role, replica) in _in_order_of_time({key: logs[key] for key in keys}, over):
            data = wanted.select_at(part.time_ns, part.data)
            if data:
                yield LogBlock(role, replica, data, part.time_ns)
        if over or wanted.is_past(time.time_ns()):
            return
        watch.wait(RECHECK_SECONDS)
