r"""The index beside a replica's two logs: when they grew, and in which order.

stdout and stderr are two plain files that the replica writes to directly. What is lost thereby is the
order between them, and the time. The supervisor watches the files and appends records to the index, each
saying: at this time the files had these sizes, and since the last record these writes were seen, in this
order, as run lengths. From that, `logmerge` puts the two back together.

Format: records of a header ``<time_ns i64, stdout_end i64, stderr_end i64, flags u32, runs u32>`` (32
bytes) and ``runs`` times u32, the numbers of writes in alternating streams. The last record may be
replaced in place by a longer-reaching one of the same length.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

HEADER = struct.Struct("<qqqII")
STDERR_FIRST = 1
#: The runs count every write. Without it, neighbouring writes of one stream count as one.
COUNTED = 2
#: No write happened between counting the writes and reading the sizes: the two belong together.
SETTLED = 4
STDOUT, STDERR = 0, 1


class Record(NamedTuple):
    """Sizes of the files at a time, and the writes seen since the record before."""

    time_ns: int
    ends: tuple[int, int]
    flags: int
    runs: tuple[int, ...]

    def writes(self) -> list[tuple[int, int]]:
        """Return the runs as pairs of stream and number of writes."""
        first = self.flags & STDERR_FIRST
        return [((first + i) % 2, count) for i, count in enumerate(self.runs)]

    @property
    def counted(self) -> bool:
        """Whether the runs count every write."""
        return bool(self.flags & COUNTED)

    @property
    def settled(self) -> bool:
        """Whether every byte up to the sizes has its write in the runs so far."""
        return bool(self.flags & SETTLED)

    def pack(self) -> bytes:
        """Return the record's bytes."""
        header = HEADER.pack(self.time_ns, *self.ends, self.flags, len(self.runs))
        return header + struct.pack(f"<{len(self.runs)}I", *self.runs)


class IndexReader:
    """Reads an index that is still being written.

    `new_records` returns what has come since the last call; of a record that was replaced in place, what
    the later one has beyond the earlier.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._offset = 0
        self._last: tuple[int, Record] | None = None

    def new_records(self) -> list[Record]:
        """Return the records that have been added or replaced since the last call."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return []
        start = self._offset if self._last is None else self._last[0]
        size = os.fstat(self._fd).st_size
        data = os.pread(self._fd, size - start, start) if size > start else b""
        records, position = [], 0
        while position + HEADER.size <= len(data):
            time_ns, out_end, err_end, flags, count = HEADER.unpack_from(data, position)
            end = position + HEADER.size + 4 * count
            if end > len(data):
                break
            runs = struct.unpack_from(f"<{count}I", data, position + HEADER.size)
            records.append((start + position, Record(time_ns, (out_end, err_end), flags, runs)))
            position = end
        if not records:
            return []
        previous, self._last = self._last, records[-1]
        self._offset = start + position
        fresh = [record for _, record in records]
        if previous is not None:
            fresh[:1] = _what_was_added(previous[1], fresh[0])
        return fresh

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _what_was_added(old: Record, new: Record) -> list[Record]:
    if new == old:
        return []
    added = tuple(after - before for before, after in zip(old.runs, new.runs, strict=True))
    return [new._replace(runs=added)]
