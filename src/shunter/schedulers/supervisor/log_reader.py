r"""Reading the logs of replicas: one or many, one stream or both, once or following.

A replica has two files, stdout and stderr, and an index of how large both were at which times. Of what was
written between two times of the index, the lines of stdout come first, then those of stderr; so the order of
both is that of time, to some milliseconds.

Lines are never split: a line is placed where its end was written. A line ends with ``\n``, or with the ``\r``
of a progress bar. Nothing is lost or duplicated whatever the index says, since it only determines the order.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from shunter.schedulers.api import LogBlock, LogQuery, Stream
from shunter.schedulers.lines import LineFilter, last_lines, start_of_last_lines
from shunter.schedulers.supervisor.log_index import LOG_NAMES, RECORD, Record

#: How much is read at a time; a share of it, but not less than the least, where there are many replicas.
CHUNK = 256 << 10
CHUNKS_OF_ALL = 16 << 20
LEAST_CHUNK = 64 << 10
#: A follower that finds nothing new looks at the job's state again after this many seconds.
RECHECK_SECONDS = 2.0
#: How much of an index is read at a time.
RECORDS_PER_BLOCK = 2048
#: A longer line is cut.
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


class IndexFile:
    """An index of this machine, which may still be written."""

    def __init__(self, path: str) -> None:
        self._file = GrowingFile(path)
        self._last: tuple[int, Record] | None = None

    def records(self, offset: int = 0) -> Iterator[tuple[int, Record]]:
        """Yield the records from an offset on, each with its own, block by block."""
        while True:
            data = self._file.read(RECORDS_PER_BLOCK * RECORD.size, offset)
            whole = data[: len(data) // RECORD.size * RECORD.size]
            if not whole:
                return
            for time_ns, out_end, err_end in RECORD.iter_unpack(whole):
                yield offset, Record(time_ns, (out_end, err_end))
                offset += RECORD.size

    def new_records(self) -> list[Record]:
        """Return what has been added, or has replaced the last record, since the last call."""
        start, known = self._last or (0, None)
        rows = list(self.records(start))
        if rows:
            self._last = rows[-1]
        return [record for _, record in rows if record != known]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ReplicaLog:
    """Reads one replica's output as it grows.

    Args:
        files: its stdout and its stderr.
        index: tells when they grew.
        stream: which stream is wanted.
        index_path: where the index is, for those who watch it.
    """

    def __init__(
        self, files: tuple[OutputFile, OutputFile], index: LogIndex, stream: Stream, index_path: str = ""
    ) -> None:
        self.index_path = index_path
        self._wanted = {Stream.STDOUT: (0,), Stream.STDERR: (1,), Stream.COMBINED: (0, 1)}[stream]
        self._index = index
        self._files = files
        self._read = [0, 0]
        #: The beginnings of lines that have not ended yet.
        self._partial = [b"", b""]
        self._indexed = Record(0, (0, 0))
        self.chunk = CHUNK

    @classmethod
    def at(cls, log_dir: str, index_path: str, stream: Stream) -> ReplicaLog:
        """Return the log of a local replica, of which ``log_dir`` has ``stdout.log`` and ``stderr.log``."""
        files = [GrowingFile(os.path.join(log_dir, name)) for name in LOG_NAMES]
        return cls((files[0], files[1]), IndexFile(index_path), stream, index_path)

    def skip_to_last(self, count: int, most_bytes: int | None = None) -> None:
        """Leave out what lies before the last ``count`` lines of each stream."""
        self._read = [self._start_of_last(which, count, most_bytes) for which in (0, 1)]

    def start_at(self, offsets: tuple[int, int]) -> None:
        """Leave out what lies before these offsets of stdout and stderr."""
        self._read = list(offsets)

    def place(self) -> tuple[int, int]:
        """Return up to which beginnings of lines both streams have been read."""
        out, err = (end - len(held) for end, held in zip(self._read, self._partial, strict=True))
        return out, err

    def parts(self) -> Iterator[Part]:
        """Yield what has been recorded since the last call."""
        for record in self._index.new_records():
            self._indexed = record
            yield from self._record_parts(record)

    def grown(self) -> Iterator[Part]:
        """Yield what there is since the last call: also whole lines that are not in the index yet."""
        yield from self.parts()
        out, err = self._files
        yield from self._record_parts(Record(self._time_of_rest(), (out.size(), err.size())))

    def rest(self) -> Iterator[Part]:
        """Yield all that there is, when no more is asked for."""
        yield from self.grown()
        yield Part(self._time_of_rest(), b"".join(self._partial))
        self._partial = [b"", b""]

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
        """Yield the lines that a record brings, those of stdout first, in chunks if they are many."""
        for which in self._wanted:
            while data := self._grown(which, record):
                lines = self._cut(which, data)
                if lines:
                    yield Part(record.time_ns, lines)

    def _cut(self, which: int, data: bytes) -> bytes:
        """Return the whole lines that a stream has now, and keep the beginning of the next one."""
        data = self._partial[which] + data
        end = _end_of_lines(data)
        if not end and len(data) > MAX_LINE:
            end = len(data)
        self._partial[which] = data[end:]
        return data[:end]

    def _grown(self, which: int, record: Record) -> bytes:
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


def _end_of_lines(data: bytes) -> int:
    r"""Return where the last whole line ends. A ``\r`` at the very end may yet become ``\r\n``."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, max(len(data) - 1, 0))) + 1


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
