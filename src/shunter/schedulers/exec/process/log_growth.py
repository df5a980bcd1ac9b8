"""The growth of local logs since a position: each stream separately, in blocks of lines, with times.

For readers who need a log's content rather than its order: the position is a few numbers that can be kept,
and nothing is read twice.
"""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from shunter.schedulers.exec.process.log_index import LOG_NAMES, IndexReader, Record
from shunter.schedulers.responses import LogGrowth

#: How much is read at a time. A longer line is cut.
BLOCK = 1 << 20


def growth(
    logs: Mapping[tuple[str, int], tuple[str, str]], position: dict[str, Any], *, to_the_end: bool
) -> Iterator[LogGrowth]:
    """Yield the growth of logs; see `Scheduler.log_growth`.

    Args:
        logs: by replica, the directory of its ``stdout.log`` and ``stderr.log``, and its index.
        position: by ``ROLE/K`` how much of stdout, stderr and the index has been read.
        to_the_end: whether a last line without its end counts.
    """
    for (role, replica), (log_dir, index_path) in logs.items():
        place = position.setdefault(f"{role}/{replica}", [0, 0, 0])
        paths = [os.path.join(log_dir, name) for name in LOG_NAMES]
        sizes = [_size(path) for path in paths]
        if sizes == place[:2]:
            continue
        index = IndexReader(index_path, place[2])
        try:
            records = index.new_records()
            for stream, path in enumerate(paths):
                if sizes[stream] <= place[stream]:
                    continue
                times = _Times(records, stream)
                for start, data in _lines(path, place[stream], sizes[stream], to_the_end):
                    place[stream] = start + len(data)
                    yield LogGrowth(role, replica, data, partial(times.at, start))
            place[2] = index.position
        finally:
            index.close()


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


class _Times:
    """When each byte of a stream was written, by the records of the index."""

    def __init__(self, records: list[Record], stream: int) -> None:
        self._ends: list[int] = []
        self._moments: list[float] = []
        for record in records:
            if not self._ends or record.ends[stream] > self._ends[-1]:
                self._ends.append(record.ends[stream])
                self._moments.append(record.time_ns / 1e9)

    def at(self, start: int, offset: int) -> float:
        """Return the time of the byte at ``start + offset``, in seconds since the epoch."""
        found = bisect.bisect_right(self._ends, start + offset)
        return self._moments[found] if found < len(self._moments) else time.time()


def _lines(path: str, start: int, end: int, to_the_end: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines between two offsets in blocks, each with its offset."""
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while start < end:
            data = file.read(min(BLOCK, end - start))
            if not data:
                return
            whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if not whole:
                if len(data) < BLOCK and not to_the_end:
                    return
                whole = len(data)
            elif to_the_end and start + len(data) == end:
                whole = len(data)
            yield start, data[:whole]
            start += whole
            file.seek(start)
