"""Reading the logs of a local job: one replica or many, one stream or both, once or following."""

from __future__ import annotations

import heapq
import os
import time
from collections import deque, namedtuple
from collections.abc import Callable, Iterator

from trainyard.schedulers.base import LogBlock, LogQuery, Stream
from trainyard.schedulers.exec.process.job_watch import JobWatch
from trainyard.schedulers.exec.process.log_index import IndexReader, Record
from trainyard.schedulers.exec.process.log_merge import Merger
from trainyard.schedulers.lines import compile_regex, iter_lines

#: How much is read at a time; a share of it, but not less than the least, where there are many replicas.
CHUNK = 256 << 10
CHUNKS_OF_ALL = 16 << 20
LEAST_CHUNK = 64 << 10
#: Lines more than asked for that are read before the last ones, where the order takes its time to settle.
MARGIN_LINES = 1000
#: A follower that finds nothing new looks at the job's state again after this many seconds.
RECHECK_SECONDS = 2.0


class Part(namedtuple("Part", "time_ns data")):
    """Whole lines of one replica, and when they were written (nanoseconds since the epoch, to 0.25 s)."""

    __slots__ = ()
    time_ns: int
    data: bytes


class ReplicaLog:
    """Reads one replica's output as it grows.

    Args:
        log_dir: where its ``stdout.log`` and ``stderr.log`` are.
        index_path: its index.
        stream: which stream.
    """

    def __init__(self, log_dir: str, index_path: str, stream: Stream) -> None:
        self.index_path = index_path
        self._paths = [os.path.join(log_dir, "stdout.log"), os.path.join(log_dir, "stderr.log")]
        self._wanted = {Stream.STDOUT: (0,), Stream.STDERR: (1,), Stream.COMBINED: (0, 1)}[stream]
        self._index = IndexReader(index_path)
        self._merger = Merger()
        self._files = [-1, -1]
        self._read = [0, 0]
        self._is_skipping = False
        self.chunk = CHUNK

    def skip_to_last(self, count: int) -> None:
        """Leave out what lies before the last ``count`` lines of each stream; some more may be left in."""
        self._read = [self._start_of_last(which, 2 * count + MARGIN_LINES) for which in (0, 1)]
        self._is_skipping = any(self._read)

    def parts(self) -> Iterator[Part]:
        """Yield what has been recorded since the last call."""
        for record in self._index.new_records():
            if not self._is_skipping:
                yield from self._record_parts(record)
            elif any(record.ends[i] > self._read[i] for i in self._wanted):
                self._is_skipping = False
                yield from self._record_parts(Record(record.time_ns, record.ends))

    def rest(self) -> Iterator[Part]:
        """Yield all that there is, when no more is asked for: also what has not got into the index."""
        yield from self.parts()
        now = time.time_ns()
        sizes = [os.fstat(self._file(i)).st_size if self._file(i) >= 0 else 0 for i in (0, 1)]
        yield from self._record_parts(Record(now, (sizes[0], sizes[1])))
        yield Part(now, self._merger.rest())

    def close(self) -> None:
        """Close the files."""
        self._index.close()
        for fd in self._files:
            if fd >= 0:
                os.close(fd)
        self._files = [-1, -1]

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
        if count <= 0 or self._file(which) < 0:
            return b""
        data = os.pread(self._file(which), count, self._read[which])
        self._read[which] += len(data)
        return data

    def _start_of_last(self, which: int, count: int) -> int:
        """Return where the last ``count`` lines of a stream begin."""
        if which not in self._wanted or self._file(which) < 0:
            return 0
        end = os.fstat(self._file(which)).st_size
        while end > 0:
            start = max(0, end - CHUNK)
            data = os.pread(self._file(which), end - start, start)
            lines = data.count(b"\n")
            if lines > count:
                return end - len(data.split(b"\n", lines - count)[-1])
            count -= lines
            end = start
        return 0

    def _file(self, which: int) -> int:
        if self._files[which] < 0:
            try:
                self._files[which] = os.open(self._paths[which], os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                pass
        return self._files[which]


class Selection:
    """The time window, the pattern and the number of lines that a query asks for."""

    def __init__(self, query: LogQuery) -> None:
        self._pattern = compile_regex(query.regex) if query.regex is not None else None
        self._since = query.since.timestamp() * 1e9 if query.since else None
        self._until = query.until.timestamp() * 1e9 if query.until else None
        self.last = query.last

    def filter(self, part: Part) -> bytes:
        """Return those of a part's lines that are asked for."""
        if self._since is not None and part.time_ns < self._since:
            return b""
        if self.is_past(part.time_ns):
            return b""
        if self._pattern is None:
            return part.data
        search = self._pattern.search
        return b"".join(
            line for line in iter_lines(part.data) if search(line.decode("utf-8", "replace").rstrip("\r\n"))
        )

    def is_past(self, time_ns: int) -> bool:
        """Tell whether a time lies after the window."""
        return self._until is not None and time_ns >= self._until


def read_logs(
    logs: dict[tuple[str, int], ReplicaLog], query: LogQuery, *, to_be_continued: bool = False
) -> Iterator[LogBlock]:
    """Yield what the replicas have written so far, in order of time.

    Args:
        logs: the replicas' logs.
        query: which lines.
        to_be_continued: leave an incomplete line, and what has not been recorded yet, to `follow_logs`.
    """
    selection = Selection(query)
    if query.last is not None and query.regex is None and query.until is None:
        for log in logs.values():
            log.skip_to_last(query.last)
    blocks = ((key, selection.filter(part)) for part, key in _in_order_of_time(logs, not to_be_continued))
    if selection.last is None:
        for (role, replica), data in blocks:
            if data:
                yield LogBlock(role, replica, data)
        return
    tails: dict[tuple[str, int], deque[bytes]] = {key: deque(maxlen=selection.last) for key in logs}
    for key, data in blocks:
        tails[key].extend(iter_lines(data))
    for (role, replica), lines in tails.items():
        if lines:
            yield LogBlock(role, replica, b"".join(lines))


def _in_order_of_time(
    logs: dict[tuple[str, int], ReplicaLog], to_the_end: bool
) -> Iterator[tuple[Part, tuple[str, int]]]:
    """Yield what is new in the logs; of each replica no more than a chunk is held at a time."""

    def parts(key: tuple[str, int], log: ReplicaLog) -> Iterator[tuple[Part, tuple[str, int]]]:
        return ((part, key) for part in (log.rest() if to_the_end else log.parts()))

    for log in logs.values():
        log.chunk = max(LEAST_CHUNK, min(CHUNK, CHUNKS_OF_ALL // len(logs)))
    streams = [parts(key, log) for key, log in logs.items()]
    return streams[0] if len(streams) == 1 else heapq.merge(*streams, key=lambda item: item[0].time_ns)


def follow_logs(
    logs: dict[tuple[str, int], ReplicaLog], query: LogQuery, watch: JobWatch, is_over: Callable[[], bool]
) -> Iterator[LogBlock]:
    """Yield what the replicas write until the job has ended and all of it has been read."""
    selection = Selection(query)
    by_index = {log.index_path: key for key, log in logs.items()}
    over = False
    while True:
        over = is_over()
        keys = list(logs) if over else [by_index[path] for path in watch.changed if path in by_index]
        for part, (role, replica) in _in_order_of_time({key: logs[key] for key in keys}, over):
            data = selection.filter(part)
            if data:
                yield LogBlock(role, replica, data)
        if over or selection.is_past(time.time_ns()):
            return
        watch.wait(RECHECK_SECONDS)
