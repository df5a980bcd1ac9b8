"""The supervisor's watch over the replicas' logs: it writes the index that `logindex` describes.

The hard part is the order between stdout and stderr at no cost to the replica. inotify queues one event
per write, in order over all files, but folds an event into the one before it when they are equal. Watching
both the two files and the directory that holds them makes every write give two different events, so none
is folded and every write is counted. That costs the writer about a microsecond a write, so while one
stream alone is flooded the directory's watch is taken off, and put back when the other stream stirs.
"""

from __future__ import annotations

import os
import time

from trainyard.schedulers.local.linux import IN_Q_OVERFLOW, Event, Inotify
from trainyard.schedulers.local.logindex import COUNTED, SETTLED, STDERR, STDERR_FIRST, STDOUT, Record

#: Events are gathered for at least this long, so that a busy log costs a bounded share of a cpu.
GATHER_SECONDS = 0.004
#: ... and for this many times as long as the last batch took to handle.
GATHER_FACTOR = 10
#: How often to look where there is no inotify.
POLL_SECONDS = 0.05
#: A record of a single stream is extended in place for this long.
BUCKET_NS = 250_000_000
#: More writes than this in one batch, all to one stream, are a flood.
FLOOD_WRITES = 2000
#: How often to look again for writes that happened between reading events and reading sizes.
SETTLE_TRIES = 3


class ReplicaRecorder:
    """Writes the index of one replica."""

    def __init__(self, log_paths: tuple[str, str], index_path: str) -> None:
        self.log_paths = log_paths
        self.watches: dict[int, int] = {}
        self.directory_watch: int | None = None
        self._files = tuple(os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in log_paths)
        self._index = os.open(index_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = os.fstat(self._index).st_size
        self._ends = (0, 0)
        self._open_record: tuple[int, int, Record] | None = None  # offset, first time, record

    def sizes(self) -> tuple[int, int]:
        """Return the present sizes of stdout and stderr; they never shrink."""
        out, err = (os.fstat(fd).st_size for fd in self._files)
        return max(out, self._ends[0]), max(err, self._ends[1])

    def record(self, ends: tuple[int, int], runs: list[tuple[int, int]], quality: int) -> None:
        """Record these sizes and the writes seen since the last call.

        ``quality`` is any of COUNTED and SETTLED.
        """
        if ends == self._ends and not runs:
            return
        now = time.time_ns()
        flags = quality | (STDERR_FIRST if runs and runs[0][0] == STDERR else 0)
        record = Record(now, ends, flags, tuple(count for _, count in runs))
        grown = [stream for stream in (STDOUT, STDERR) if ends[stream] != self._ends[stream]]
        self._ends = ends
        single = len(runs) == 1 and grown in ([], [runs[0][0]])
        extended = self._extended(record) if single else None
        if extended is not None:
            offset, first, record = extended
        else:
            offset, first = self._end, now
        data = record.pack()
        os.pwrite(self._index, data, offset)
        self._end = offset + len(data)
        self._open_record = (offset, first, record) if single else None

    def _extended(self, record: Record) -> tuple[int, int, Record] | None:
        """Return the last record made to reach as far as this one, if it is of the same kind and recent."""
        if self._open_record is None:
            return None
        offset, first, last = self._open_record
        if (last.flags ^ record.flags) & ~SETTLED or record.time_ns - first > BUCKET_NS:
            return None
        return offset, first, record._replace(runs=(last.runs[0] + record.runs[0],))

    def close(self) -> None:
        """Close the files."""
        for fd in (*self._files, self._index):
            os.close(fd)


class LogRecorder:
    """Watches the logs of all replicas of a job."""

    def __init__(self) -> None:
        self._inotify = Inotify.open()
        self._replicas: list[ReplicaRecorder] = []
        self._streams: dict[int, tuple[ReplicaRecorder, int]] = {}
        self._late: list[Event] = []
        self._next_look = 0.0

    def fileno(self) -> int | None:
        """Return the file descriptor to poll for input, or None when it is not to be polled now."""
        if self._inotify is None or time.monotonic() < self._next_look:
            return None
        return self._inotify.fileno()

    def seconds_to_wait(self) -> float | None:
        """Return after how many seconds `look` wants to be called; None if `fileno` will tell."""
        rest = self._next_look - time.monotonic()
        if self._inotify is None:
            return max(rest, 0.0)
        return max(rest, 0.0) if self._late or rest > 0 else None

    def add(self, log_paths: tuple[str, str], index_path: str) -> ReplicaRecorder:
        """Begin to watch a replica's logs, which must exist."""
        replica = ReplicaRecorder(log_paths, index_path)
        self._replicas.append(replica)
        if self._inotify is not None:
            watches = [self._inotify.add(path) for path in log_paths]
            if None in watches:  # the user's limit of watches is reached: look from time to time
                self._give_up_watching()
            else:
                for stream, watch in enumerate(watches):
                    assert watch is not None
                    self._streams[watch] = (replica, stream)
                self._watch_directory(replica)
        return replica

    def look(self) -> None:
        """Record what has been written since the last call."""
        began = time.monotonic()
        if self._inotify is None:
            for replica in self._replicas:
                replica.record(replica.sizes(), [], 0)
            self._next_look = began + POLL_SECONDS
            return
        busy = self._record_events()
        now = time.monotonic()
        self._next_look = now + max(GATHER_SECONDS, GATHER_FACTOR * (now - began)) if busy else now

    def _record_events(self) -> bool:
        """Record what the queued events tell; returns whether there were any."""
        assert self._inotify is not None
        events = self._late + self._inotify.read()
        self._late = []
        runs = self._runs_by_replica(events)
        sizes: dict[ReplicaRecorder, tuple[int, int]] = {}
        unsettled = set(runs)
        for _ in range(SETTLE_TRIES):
            sizes.update((replica, replica.sizes()) for replica in unsettled)
            self._late = self._inotify.read()
            unsettled = set(self._runs_by_replica(self._late)) & set(runs)
            if not unsettled:
                break
            events += self._late
            self._late = []
            runs = self._runs_by_replica(events)
            unsettled |= runs.keys() - sizes.keys()
        for replica in runs.keys() - sizes.keys():
            sizes[replica] = replica.sizes()
        overflow = any(event.mask & IN_Q_OVERFLOW for event in events)
        for replica, replica_runs in runs.items():
            counted = replica.directory_watch is not None and not overflow
            quality = (COUNTED if counted else 0) | (0 if replica in unsettled else SETTLED)
            replica.record(sizes[replica], replica_runs, quality)
            self._adapt(replica, replica_runs)
        if overflow:
            for replica in self._replicas:
                replica.record(replica.sizes(), [], 0)
        return bool(events)

    def finish(self, replica: ReplicaRecorder) -> None:
        """Record the last of a replica's output."""
        self.look()
        replica.record(replica.sizes(), [], SETTLED)

    def close(self) -> None:
        """Close everything."""
        for replica in self._replicas:
            replica.close()
        if self._inotify is not None:
            self._inotify.close()

    def _runs_by_replica(self, events: list[Event]) -> dict[ReplicaRecorder, list[tuple[int, int]]]:
        runs: dict[ReplicaRecorder, list[tuple[int, int]]] = {}
        for event in events:
            known = self._streams.get(event.watch)
            if known is None:  # the directory's event, which only keeps the others from being folded
                continue
            replica, stream = known
            replica_runs = runs.setdefault(replica, [])
            if replica_runs and replica_runs[-1][0] == stream:
                replica_runs[-1] = (stream, replica_runs[-1][1] + 1)
            else:
                replica_runs.append((stream, 1))
        return runs

    def _adapt(self, replica: ReplicaRecorder, runs: list[tuple[int, int]]) -> None:
        assert self._inotify is not None
        if len(runs) > 1 and replica.directory_watch is None:
            self._watch_directory(replica)
        elif len(runs) == 1 and runs[0][1] > FLOOD_WRITES and replica.directory_watch is not None:
            self._inotify.remove(replica.directory_watch)
            replica.directory_watch = None

    def _watch_directory(self, replica: ReplicaRecorder) -> None:
        assert self._inotify is not None
        replica.directory_watch = self._inotify.add(os.path.dirname(replica.log_paths[0]))

    def _give_up_watching(self) -> None:
        assert self._inotify is not None
        self._inotify.close()
        self._inotify = None
        self._streams.clear()
