"""Logs of replicas on shared storage: all attempts of each, read by `log_reader`, followed while they grow.

The reader keeps the offsets, so whatever happens to a connection, nothing is lost or repeated: the next look
continues where the last one stopped. Bytes are shown as soon as they are in the files; the index gives the
times of those that were there before. Earlier attempts are read on, too: a node that is cut off may still
write.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from shunter.backoff import Backoff
from shunter.errors import UnreachableError
from shunter.schedulers.hpc.shared_folder import log_folder
from shunter.schedulers.hpc.storage import Storage
from shunter.schedulers.responses import LogBlock, LogPart, LogQuery, LogRange, Stream
from shunter.schedulers.supervisor.log_index import Record
from shunter.schedulers.supervisor.log_ranges import AttemptRanges, LogRanges, RecordIndex
from shunter.schedulers.supervisor.log_reader import Part, ReplicaLog, follow_logs, read_logs

T = TypeVar("T")

#: Seconds between two looks at the logs: while they grow, and at most.
FIRST_LOOK, LONGEST_LOOK = 0.25, 3.0
#: How often the queue is asked whether the job has ended.
FIRST_QUESTION, LONGEST_QUESTION = 0.25, 10.0
#: How long a follower keeps trying while the storage cannot be reached.
PATIENCE_SECONDS = 900.0
#: How much is fetched of each file at once, and of all.
FETCH, FETCH_OF_ALL = 1 << 20, 32 << 20
#: How much of a script's output is read, and of how many scripts: each task of an array has one.
SCRIPT_END, MOST_SCRIPTS = 1 << 16, 8
_SUFFIXES = (".out", ".err", ".idx")


def scripts_output(storage: Storage, folder: str) -> list[str]:
    """Return the last lines of the scripts' output, where the queue and its programs write, too."""
    sizes = storage.sizes([posixpath.join(folder, "logs")])
    paths = [path for path in sorted(sizes) if path.endswith(".out") and not path.endswith("/follow-up.out")]
    ends = [(path, max(0, sizes[path] - SCRIPT_END), SCRIPT_END) for path in paths[-MOST_SCRIPTS:]]
    return b"\n".join(storage.read_ranges(ends)).decode("utf-8", "replace").splitlines()


class StoredFile:
    """A file of the shared storage, of which what is new has been fetched.

    Args:
        logs: fetches it.
        path: its path.
    """

    def __init__(self, logs: SharedLogs, path: str) -> None:
        self._logs = logs
        self.path = path
        self.read_to = 0
        self._start, self._data = 0, b""

    def size(self) -> int:
        """Return its size when it was last looked at."""
        return self._logs.sizes.get(self.path, 0)

    def read(self, count: int, offset: int) -> bytes:
        """Return at most a number of bytes of it, from an offset."""
        count = min(count, self.size() - offset)
        if count <= 0:
            return b""
        if not self._start <= offset < self._start + len(self._data):
            self.buffer(offset, self._logs.fetch(self.path, offset, max(count, FETCH)))
        begin = offset - self._start
        data = self._data[begin : begin + count]
        self.read_to = offset + len(data)
        return data

    def buffer(self, offset: int, data: bytes) -> None:
        """Keep what was fetched, until it is read."""
        self._start, self._data = offset, data

    def is_behind(self) -> bool:
        """Tell whether it has bytes that have neither been read nor fetched."""
        return self.size() > max(self.read_to, self._start + len(self._data))

    def close(self) -> None:
        """Forget what was fetched."""
        self._data = b""


class SizeIndex(RecordIndex):
    """The index that ``run.sh`` writes: lines with a time and the sizes of both files.

    Args:
        file: where it is.
    """

    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._end = 0

    def records(self, offset: int = 0) -> Iterator[tuple[int, Record]]:
        """Yield the records from an offset on, each with its offset, block by block."""
        rest = b""
        while data := self._file.read(FETCH, offset + len(rest)):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                record = _record(line)
                if record is not None:
                    yield offset, record
                offset += len(line) + 1
        self._end = offset

    def new_records(self) -> list[Record]:
        """Return what has been added since the last call."""
        return [record for _, record in self.records(self._end)]

    def close(self) -> None:
        """Forget what was fetched."""
        self._file.close()


def _record(line: bytes) -> Record | None:
    """Return what a line of an index says; None if it is damaged."""
    words = line.split()
    if len(words) != 3 or not all(word.isdigit() for word in words):
        return None
    return Record(int(words[0]), (int(words[1]), int(words[2])))


class AttemptsLog:
    """The log of a replica over all its attempts, in their order. It reads like a `ReplicaLog`."""

    def __init__(self, logs: SharedLogs, folder: str, stream: Stream) -> None:
        self.index_path = folder  # identifies it
        self.chunk = 0
        self._logs = logs
        self._stream = stream
        self._attempts: dict[int, ReplicaLog] = {}
        self._last = 0

    def find_attempts(self) -> None:
        """Find the attempts that exist by now."""
        for number, (out, err, index) in self._logs.attempts_in(self.index_path).items():
            if number not in self._attempts:
                self._attempts[number] = ReplicaLog((out, err), SizeIndex(index), self._stream)
        self._attempts = dict(sorted(self._attempts.items()))

    def skip_to_last(self, count: int, most_bytes: int | None = None) -> None:
        """Leave out what lies before the last lines of each attempt; some more may be left in."""
        for log in self._attempts.values():
            log.skip_to_last(count, most_bytes)

    def parts(self) -> Iterator[Part]:
        """Yield new lines; an incomplete line of the last attempt waits for its end."""
        return self._new_parts(to_the_end=False)

    def rest(self) -> Iterator[Part]:
        """Yield all remaining lines, an incomplete last one too."""
        return self._new_parts(to_the_end=True)

    def close(self) -> None:
        """Forget what was fetched."""
        for log in self._attempts.values():
            log.close()

    def _new_parts(self, *, to_the_end: bool) -> Iterator[Part]:
        """Yield what is new; a last line that an attempt left without an end gets one before the next."""
        last = max(self._attempts, default=-1)
        for number, log in self._attempts.items():
            is_over = number != last
            log.chunk = self.chunk or log.chunk
            for part in log.rest() if to_the_end or is_over else log.grown():
                if part.data:
                    is_torn = is_over and not part.data.endswith((b"\n", b"\r"))
                    self._last = max(self._last, part.time_ns)
                    yield Part(self._last, part.data + b"\n" if is_torn else part.data)


class SharedLogs:
    """The logs of some replicas of a job. It is also the watch of `follow_logs`.

    Args:
        storage: where they are.
        folder: the job's folder.
        replicas: which ones.
        stream: which stream.
        is_patient: whether to go on trying while the storage cannot be reached.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        replicas: Sequence[tuple[str, int]],
        stream: Stream,
        *,
        is_patient: bool = False,
    ) -> None:
        self._storage = storage
        self._files: dict[str, StoredFile] = {}
        self.sizes: dict[str, int] = {}
        #: The attempts that each folder has a log of.
        self._numbers: dict[str, set[int]] = {}
        self.logs = {key: AttemptsLog(self, log_folder(folder, *key), stream) for key in replicas}
        self._pauses = Backoff(FIRST_LOOK, LONGEST_LOOK, factor=1.5, jitter=0)
        self._failures = Backoff(1.0, 30.0, jitter=0, limit=PATIENCE_SECONDS)
        self._is_patient = is_patient
        #: The folders whose logs have grown.
        self.changed = {log.index_path for log in self.logs.values()}

    def attempts_in(self, folder: str) -> dict[int, tuple[StoredFile, StoredFile, StoredFile]]:
        """Return stdout, stderr and index of the attempts in a folder, by their numbers, in order."""
        found = {}
        for number in sorted(self._numbers.get(folder, ())):
            out, err, index = (self._file(f"{folder}/{number}{suffix}") for suffix in _SUFFIXES)
            found[number] = out, err, index
        return found

    def _file(self, path: str) -> StoredFile:
        return self._files.setdefault(path, StoredFile(self, path))

    def fetch(self, path: str, offset: int, count: int) -> bytes:
        """Return a part of a file.

        Raises:
            UnreachableError: the storage cannot be reached.
        """
        return self._tried(lambda: self._storage.read_ranges([(path, offset, count)]))[0]

    def refresh(self) -> set[str]:
        """Find the logs that have grown, and fetch what is new; returns their folders.

        Raises:
            UnreachableError: the storage cannot be reached.
        """
        folders = [log.index_path for log in self.logs.values()]
        sizes = self._tried(lambda: self._storage.sizes(folders))
        grown = {
            path
            for path, size in sizes.items()
            if size > self.sizes.get(path, -1) and path.endswith(_SUFFIXES)
        }
        self.sizes |= {path: sizes[path] for path in grown}
        for path in grown:
            folder, _, name = path.rpartition("/")
            if name.endswith(".out") and name[:-4].isdecimal():
                self._numbers.setdefault(folder, set()).add(int(name[:-4]))
        changed = {posixpath.dirname(path) for path in grown}
        for log in self.logs.values():
            if log.index_path in changed:
                log.find_attempts()
        behind = [file for file in self._files.values() if file.is_behind()]
        share = min(max(FETCH_OF_ALL // max(len(behind), 1), 4096), FETCH)
        ranges = [(file.path, file.read_to, share) for file in behind]
        parts = self._tried(lambda: self._storage.read_ranges(ranges))
        for file, data in zip(behind, parts, strict=True):
            file.buffer(file.read_to, data)
        return changed

    def _tried(self, call: Callable[[], T]) -> T:
        """Make a call, again and again while the storage cannot be reached, if it may take that long."""
        while True:
            try:
                answer = call()
            except UnreachableError:
                if not self._is_patient or not self._failures.pause():
                    raise
            else:
                self._failures.reset()
                return answer

    def wait(self, timeout: float) -> None:
        """Block until some logs may have grown; ``changed`` has their folders then."""
        self._pauses.pause()
        self.changed = self.refresh()
        if self.changed:
            self._pauses.reset()

    def close(self) -> None:
        """Release what is open."""
        for log in self.logs.values():
            log.close()


def read(logs: SharedLogs, query: LogQuery) -> Iterator[LogBlock]:
    """Yield the lines that have been written so far."""
    try:
        logs.refresh()
        yield from read_logs(logs.logs, query)
    finally:
        logs.close()


def follow(logs: SharedLogs, query: LogQuery, has_ended: Callable[[], bool]) -> Iterator[LogBlock]:
    """Yield the lines written so far, then new ones, until the job has ended and all lines are read."""
    questions = Backoff(FIRST_QUESTION, LONGEST_QUESTION, factor=1.3, jitter=0)
    next_question = 0.0

    def is_over() -> bool:
        nonlocal next_question
        now = time.monotonic()
        if now < next_question:
            return False
        if has_ended():
            logs.refresh()  # what was written just before the end
            return True
        next_question = time.monotonic() + questions.delay()
        return False

    try:
        logs.refresh()
        if query.last is not None:
            yield from read_logs(logs.logs, query, to_be_continued=True)
        yield from follow_logs(logs.logs, query, logs, is_over)
    finally:
        logs.close()


def read_part(logs: SharedLogs, wanted: LogRange) -> LogPart | None:
    """Return a part of the log of one replica; None if it has no log yet."""
    try:
        logs.refresh()
        (log,) = logs.logs.values()
        attempts = logs.attempts_in(log.index_path)
        if not attempts:
            return None
        return AttemptRanges(
            {
                number: LogRanges((out, err), SizeIndex(index), wanted.streams)
                for number, (out, err, index) in attempts.items()
            }
        ).read(wanted)
    finally:
        logs.close()
