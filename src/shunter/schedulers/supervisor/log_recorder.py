"""Watching the replicas' logs in the supervisor, and writing the index that `log_index` describes."""

from __future__ import annotations

import os
import time

from shunter.schedulers.supervisor.log_index import Record
from shunter.system.file_events import FileEvents

#: Growth is gathered for at least this long, so that a busy log costs a bounded share of a cpu ...
GATHER_SECONDS = 0.004
#: ... and for this many times as long as the last look took.
GATHER_FACTOR = 10
#: How often to look where the system has no file events.
POLL_SECONDS = 0.05
#: While only one stream grows, its record is replaced for this long, so that the index stays small.
BUCKET_NS = 250_000_000


class ReplicaRecorder:
    """Writes the index of one replica, and makes the log files. Their directories must exist.

    Args:
        log_paths: of stdout and stderr, or of one file for both, which counts as stdout.
        index_path: of the index.
    """

    #: Files that it holds open: the logs, and the index when something is written.
    LOG_FILES, FILES = 2, 3

    def __init__(self, log_paths: tuple[str, ...], index_path: str) -> None:
        self.log_paths = log_paths
        flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC
        self._files = tuple(os.open(path, flags, 0o600) for path in log_paths)
        self._index_path = index_path
        self._index = -1  # made when it is needed: making files is the most expensive step of a start
        self._end = 0
        self._ends = (0, 0)
        #: Stream, offset and first time of the last record, while it may be replaced.
        self._bucket: tuple[int, int, int] | None = None

    def sizes(self) -> tuple[int, int]:
        """Return the present sizes of stdout and stderr; they never shrink."""
        out, err = [*(os.fstat(fd).st_size for fd in self._files), 0][:2]
        return max(out, self._ends[0]), max(err, self._ends[1])

    def begin_attempt(self) -> tuple[int, int]:
        """Record what earlier attempts have written, so that it stays before this one; returns the sizes."""
        self.record()
        self._bucket = None
        return self.sizes()

    def record(self) -> None:
        """Record the present sizes, if they are new. On a full disk the next call tries again."""
        ends = self.sizes()
        grown = [stream for stream in (0, 1) if ends[stream] != self._ends[stream]]
        if not grown:
            return
        now = time.time_ns()
        offset, first = self._end, now
        if self._bucket is not None and grown == [self._bucket[0]] and now - self._bucket[2] <= BUCKET_NS:
            _, offset, first = self._bucket
        data = Record(now, ends).pack()
        try:
            if self._index < 0:
                self._index = os.open(self._index_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if os.pwrite(self._index, data, offset) < len(data):
                return
        except OSError:
            return
        self._ends = ends
        self._end = offset + len(data)
        self._bucket = (grown[0], offset, first) if len(grown) == 1 else None


class LogRecorder:
    """Watches the logs of all replicas of a job.

    Args:
        events: a queue of file events without watches; None where the system has none.
    """

    def __init__(self, events: FileEvents | None) -> None:
        self._events = events
        self._replicas: list[ReplicaRecorder] = []
        self._by_watch: dict[int, ReplicaRecorder] = {}
        self._next_look = 0.0

    def fileno(self) -> int | None:
        """Return the file descriptor to poll for input, or None if it should not be polled now."""
        if self._events is None or time.monotonic() < self._next_look:
            return None
        return self._events.fileno()

    def seconds_to_wait(self) -> float | None:
        """Return in how many seconds to call `record_changes`; None if `fileno` becomes readable first."""
        rest = self._next_look - time.monotonic()
        return max(rest, 0.0) if self._events is None or rest > 0 else None

    def add(self, replica: ReplicaRecorder) -> None:
        """Begin to watch a replica's logs."""
        self._replicas.append(replica)
        if self._events is None:
            return
        for path in replica.log_paths:
            watch = self._events.add(path)
            if watch is None:  # the user's limit of watches is reached: look from time to time instead
                self._events.close()
                self._events = None
                return
            self._by_watch[watch] = replica

    def record_changes(self) -> None:
        """Record what has been written since the last call."""
        began = time.monotonic()
        if self._events is None:
            grown = self._replicas
        else:
            changes = self._events.read()
            grown = list(
                {self._by_watch[watch]: None for watch in changes.watches if watch in self._by_watch}
            )
            grown = self._replicas if changes.overflow else grown
        for replica in grown:
            replica.record()
        now = time.monotonic()
        pause = POLL_SECONDS if self._events is None else GATHER_SECONDS if grown else 0.0
        self._next_look = now + max(pause, GATHER_FACTOR * (now - began) if grown else 0.0)
