"""Watching the replicas' logs in the supervisor, and writing the index that `log_index` describes.

The hard part is the order between stdout and stderr at no cost to the replica. inotify queues one event
per write, in order over all files, but folds an event into the one before it when they are equal. Watching
both the two files and the directory that holds them makes every write give two different events, so none
is folded and every write is counted. That costs the writer about a microsecond a write, so while one
stream alone is flooded the directory's watch is taken off, and put back when the other stream is written to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from shunter.schedulers.supervisor.log_index import (
    COUNTED,
    MIXED,
    SETTLED,
    STDERR,
    STDOUT,
    Record,
    make_record,
)
from shunter.system.interface import FileEvents

#: Events are gathered for at least this long, so that a busy log costs a bounded share of a cpu.
GATHER_SECONDS = 0.004
#: ... and for this many times as long as the last batch took to handle, unless the queue (of 16,384
#: events by default) might overflow meanwhile.
GATHER_FACTOR = 10
MANY_WRITES = 1000
#: How often to poll where the system has no file events.
POLL_SECONDS = 0.05
#: A record of a single stream is extended in place for this long.
BUCKET_NS = 250_000_000
#: More writes than this in one batch, all to one stream, are a flood.
FLOOD_WRITES = 2000
#: How often to repeat the check for writes between reading events and reading sizes.
SETTLE_TRIES = 3


class ReplicaRecorder:
    """Writes the index of one replica, and makes the log files. Their directories must exist."""

    #: Files that it holds open: the logs, and the index when something is written.
    LOG_FILES, FILES = 2, 3

    def __init__(self, log_paths: tuple[str, str], index_path: str) -> None:
        self.log_paths = log_paths
        self.directory_watch: int | None = None
        flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC
        self._files = tuple(os.open(path, flags, 0o600) for path in log_paths)
        self._index_path = index_path
        self._index = -1  # made when it is needed: making files is the most expensive step of a start
        self._end = 0
        self._ends = (0, 0)
        self._open_record: tuple[int, int, Record] | None = None  # offset, first time, record
        self._lost = False

    def sizes(self) -> tuple[int, int]:
        """Return the present sizes of stdout and stderr; they never shrink."""
        out, err = (os.fstat(fd).st_size for fd in self._files)
        return max(out, self._ends[0]), max(err, self._ends[1])

    def record(self, ends: tuple[int, int], order: bytes, quality: int) -> None:
        """Record these sizes and the writes seen since the last call, the stream of each.

        ``quality`` is any of COUNTED and SETTLED.
        """
        if ends == self._ends and not order:
            return
        record = make_record(time.time_ns(), ends, order, quality)
        grown = [stream for stream in (STDOUT, STDERR) if ends[stream] != self._ends[stream]]
        single = not record.flags & MIXED and grown in ([], list(record.streams))
        offset, first = self._end, record.time_ns
        if single and self._open_record is not None and self._reaches(record):
            offset, first, last = self._open_record
            record = record._replace(writes=last.writes + record.writes)
        self._write(record, offset)
        self._open_record = (offset, first, record) if single and not self._lost else None

    def _write(self, record: Record, offset: int) -> None:
        """Write a record. On a full disk it is left out, and the next record has no order."""
        if self._lost:
            record = Record(record.time_ns, record.ends)
        data = record.pack()
        try:
            if self._index < 0:
                self._index = os.open(self._index_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._lost = os.pwrite(self._index, data, offset) < len(data)
        except OSError:
            self._lost = True
        if not self._lost:
            self._ends = record.ends
            self._end = offset + len(data)

    def record_unordered(self) -> None:
        """Record the present sizes, reached in an unknown order."""
        self._write(Record(time.time_ns(), self.sizes()), self._end)
        self._open_record = None

    def _reaches(self, record: Record) -> bool:
        """Tell whether the last record can include this one: it is of the same kind, and recent."""
        assert self._open_record is not None
        _, first, last = self._open_record
        return not (last.flags ^ record.flags) & ~SETTLED and record.time_ns - first <= BUCKET_NS

    def close(self) -> None:
        """Close the files."""
        for fd in (*self._files, self._index):
            if fd >= 0:
                os.close(fd)


class LogRecorder:
    """Watches the logs of all replicas of a job.

    Args:
        events: a queue of file events without watches; None where the system has none.
    """

    def __init__(self, events: FileEvents | None) -> None:
        self._events = events
        self._replicas: list[ReplicaRecorder] = []
        self._streams: dict[int, tuple[ReplicaRecorder, int]] = {}
        self._late: dict[ReplicaRecorder, bytes] = {}
        self._next_check = 0.0

    def fileno(self) -> int | None:
        """Return the file descriptor to poll for input, or None if it should not be polled now."""
        if self._events is None or time.monotonic() < self._next_check:
            return None
        return self._events.fileno()

    def seconds_to_wait(self) -> float | None:
        """Return in how many seconds to call `record_changes`; None if `fileno` becomes readable first."""
        rest = self._next_check - time.monotonic()
        if self._events is None:
            return max(rest, 0.0)
        return max(rest, 0.0) if self._late or rest > 0 else None

    def add(self, replica: ReplicaRecorder) -> None:
        """Begin to watch a replica's logs."""
        self._replicas.append(replica)
        if self._events is not None:
            watches = [self._events.add(path) for path in replica.log_paths]
            if None in watches:  # the user's limit of watches is reached: poll instead
                self._give_up_watching()
            else:
                for stream, watch in enumerate(watches):
                    assert watch is not None
                    self._streams[watch] = (replica, stream)
                self._watch_directory(replica)

    def record_changes(self) -> None:
        """Record what has been written since the last call."""
        began = time.monotonic()
        if self._events is None:
            for replica in self._replicas:
                replica.record(replica.sizes(), b"", 0)
            self._next_check = began + POLL_SECONDS
            return
        writes = self._record_events()
        now = time.monotonic()
        gather = GATHER_SECONDS
        if writes < MANY_WRITES:
            gather = max(gather, GATHER_FACTOR * (now - began))
        self._next_check = now + gather if writes else now

    def _record_events(self) -> int:
        """Record the queued events; returns how many there were."""
        assert self._events is not None
        overflow = False
        orders: dict[ReplicaRecorder, bytes] = self._late
        sizes: dict[ReplicaRecorder, tuple[int, int]] = {}
        unsettled: set[ReplicaRecorder] = set()
        self._late = {}
        for attempt in range(SETTLE_TRIES):
            watches, lost = self._events.read()
            overflow = overflow or lost
            more = self._orders(watches)
            unsettled = set(more) & set(sizes)
            if attempt and not unsettled:
                self._late = more
                break
            for replica, order in more.items():
                orders[replica] = orders.get(replica, b"") + order
            sizes.update((replica, replica.sizes()) for replica in orders)
        for replica, order in orders.items():
            counted = COUNTED if replica.directory_watch is not None else 0
            settled = SETTLED if replica not in unsettled and not overflow else 0
            replica.record(sizes[replica], order, counted | settled)
            self._adapt(replica, order)
        if overflow:  # what came after the events that we have is in an unknown order
            for replica in self._replicas:
                replica.record_unordered()
        return sum(map(len, orders.values()))

    def finish(self, replica: ReplicaRecorder) -> None:
        """Record the last of a replica's output."""
        self.record_changes()
        replica.record(replica.sizes(), b"", SETTLED)

    def close(self) -> None:
        """Close everything."""
        for replica in self._replicas:
            replica.close()
        if self._events is not None:
            self._events.close()

    def _orders(self, watches: Sequence[int]) -> dict[ReplicaRecorder, bytes]:
        """Return for each replica the streams of its writes, in order."""
        known = {watch: self._streams[watch] for watch in set(watches) if watch in self._streams}
        replicas = {replica for replica, _ in known.values()}
        if len(replicas) == 1 and isinstance(watches, bytes):
            table = bytearray(256)
            for watch, (_, stream) in known.items():
                table[watch] = stream
            unknown = bytes(set(watches) - known.keys())
            return {replicas.pop(): watches.translate(table, unknown)}
        orders: dict[ReplicaRecorder, bytearray] = {replica: bytearray() for replica in replicas}
        for watch in watches:
            if watch in known:
                replica, stream = known[watch]
                orders[replica].append(stream)
        return {replica: bytes(order) for replica, order in orders.items()}

    def _adapt(self, replica: ReplicaRecorder, order: bytes) -> None:
        """Count every write of a replica, except while it floods one stream alone."""
        assert self._events is not None
        mixed = len(set(order)) == 2
        if mixed and replica.directory_watch is None:
            self._watch_directory(replica)
        elif not mixed and len(order) > FLOOD_WRITES and replica.directory_watch is not None:
            self._events.remove(replica.directory_watch)
            replica.directory_watch = None

    def _watch_directory(self, replica: ReplicaRecorder) -> None:
        assert self._events is not None
        replica.directory_watch = self._events.add(os.path.dirname(replica.log_paths[0]))

    def _give_up_watching(self) -> None:
        assert self._events is not None
        self._events.close()
        self._events = None
        self._streams.clear()
