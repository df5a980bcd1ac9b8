"""The index beside a replica's two logs: how large they were at which times.

stdout and stderr are two plain files that the replica writes to directly, which loses the order between them
and the times. So the supervisor watches the files and appends records to the index: the time in nanoseconds
since the epoch, and the sizes of both files then. The last record may still be replaced by a later one.
`log_reader` merges the two files by it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

RECORD = struct.Struct("<qqq")
#: The two logs of a replica in its directory; a stream is the number of its file here.
LOG_NAMES = ("stdout.log", "stderr.log")


class Record(NamedTuple):
    """Sizes of stdout and stderr at a time."""

    time_ns: int
    ends: tuple[int, int]

    def pack(self) -> bytes:
        """Return the record's bytes."""
        return RECORD.pack(self.time_ns, *self.ends)


def unpack_records(data: bytes) -> Iterator[tuple[int, int, Record]]:
    """Yield the whole records in a part of an index, each with its beginning and its end in the part."""
    for begin in range(0, len(data) - RECORD.size + 1, RECORD.size):
        time_ns, out_end, err_end = RECORD.unpack_from(data, begin)
        yield begin, begin + RECORD.size, Record(time_ns, (out_end, err_end))


class IndexReader:
    """Reads an index that is still being written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._start = 0
        self._last: Record | None = None

    def new_records(self) -> list[Record]:
        """Return what has been added, or has replaced the last record, since the last call."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return []
        size = os.fstat(self._fd).st_size
        records = list(unpack_records(os.pread(self._fd, max(size - self._start, 0), self._start)))
        if not records:
            return []
        self._start += records[-1][0]
        fresh = [record for _, _, record in records if record != self._last]
        self._last = records[-1][2]
        return fresh

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
