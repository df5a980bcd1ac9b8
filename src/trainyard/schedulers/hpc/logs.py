"""Logs of replicas on shared storage: several attempts of each, merged by time, followed while they grow."""

from __future__ import annotations

import time

from trainyard.backoff import Backoff
from trainyard.schedulers.hpc.shared_folder import log_folder
from trainyard.schedulers.lines import LineFilter, last_lines
from trainyard.schedulers.responses import LogBlock, LogQuery, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trainyard.schedulers.hpc.storage import Storage

#: How often logs are looked at while they are followed, in seconds: at first, and when they do not grow.
FIRST_LOOK = 0.25
LONGEST_LOOK = 5.0


class SharedLogs:
    """The logs of some replicas of a job, read as they grow.

    Args:
        storage: where they are.
        folder: the job's folder.
        replicas: which ones.
        stream: which stream.
    """

    def __init__(
        self, storage: Storage, folder: str, replicas: Sequence[tuple[str, int]], stream: Stream
    ) -> None:
        self._storage = storage
        self._folders = {log_folder(folder, *key): key for key in replicas}
        self._suffixes = {Stream.STDOUT: (".out",), Stream.STDERR: (".err",)}.get(stream, (".out", ".err"))
        self._read: dict[str, int] = {}
        self._partial: dict[str, bytes] = {}

    def new_blocks(self, *, is_last: bool = False) -> list[LogBlock]:
        """Return the whole lines that have come since the last call; the rest, too, if it is the last one."""
        sizes = self._storage.sizes(list(self._folders))
        wanted = [
            (path, self._read.get(path, 0), -1)
            for path in sorted(sizes)
            if path.endswith(self._suffixes) and sizes[path] > self._read.get(path, 0)
        ]
        found = []
        for (path, _, _), data in zip(wanted, self._storage.read_ranges(wanted), strict=True):
            self._read[path] = self._read.get(path, 0) + len(data)
            data = self._partial.pop(path, b"") + data
            end = len(data) if is_last else data.rfind(b"\n") + 1
            self._partial[path] = data[end:]
            role, k = self._folders[path.rpartition("/")[0]]
            found.append(LogBlock(role, k, data[:end]))
        if is_last:
            for path, data in self._partial.items():
                role, k = self._folders[path.rpartition("/")[0]]
                found.append(LogBlock(role, k, data))
            self._partial.clear()
        return [block for block in found if block.data]


def read_blocks(logs: SharedLogs, query: LogQuery, replicas: Sequence[tuple[str, int]]) -> Iterator[LogBlock]:
    """Yield what there is."""
    wanted = LineFilter(query)
    blocks = (LogBlock(b.role, b.replica, wanted.select(b.data)) for b in logs.new_blocks(is_last=True))
    yield from last_lines(blocks, query.last, replicas)


def follow_blocks(logs: SharedLogs, query: LogQuery, is_over: Callable[[], bool]) -> Iterator[LogBlock]:
    """Yield what there is and what comes, until the job has ended and all has been read."""
    wanted = LineFilter(query)
    pauses = Backoff(FIRST_LOOK, LONGEST_LOOK, factor=1.5, jitter=0)
    while True:
        over = is_over()
        blocks = logs.new_blocks(is_last=over)
        for block in blocks:
            data = wanted.select(block.data)
            if data:
                yield LogBlock(block.role, block.replica, data)
        if over or wanted.is_past(time.time_ns()):
            return
        if blocks:
            pauses.reset()
        pauses.pause()
