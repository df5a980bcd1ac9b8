r"""The index beside a replica's two logs: when they grew, and in which order.

stdout and stderr are two plain files that the replica writes to directly, which loses the order between them
and the times. So the supervisor watches the files and appends records to the index: the time, the sizes of
the files, and the writes since the last record in their order. `log_reader` merges the two files by it.

Format: records of a header ``<time_ns i64, stdout_end i64, stderr_end i64, flags u32, writes u32>`` (32
bytes). Where both streams were written to (flag MIXED), ``writes`` bytes follow, the stream (0 or 1) of each
write. If no such bytes follow the last record, it may be replaced by one that includes it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

HEADER = struct.Struct("<qqqII")
STDOUT, STDERR = 0, 1

#: All the writes were to stderr.
ONLY_STDERR = 1
#: The writes are counted. Without it, neighbouring writes of one stream count as one.
COUNTED = 2
#: No write happened between counting the writes and reading the sizes: the two belong together.
SETTLED = 4
#: Both streams were written to, and the order follows.
MIXED = 8


#: The two logs of a replica in its directory; a stream is the number of its file here.
LOG_NAMES = ("stdout.log", "stderr.log")


class Record(NamedTuple):
    """Sizes of the files at a time, and the writes seen since the record before.

    ``order`` holds the stream of each write, 0 or 1, where both were written to; otherwise it is empty,
    and ``writes`` is their number.
    """

    time_ns: int
    ends: tuple[int, int]
    flags: int = 0
    writes: int = 0
    order: bytes = b""

    @property
    def streams(self) -> bytes:
        """The streams that were written to, in the order of their first writes."""
        if not self.writes:
            return b""
        if not self.order:
            return bytes([self.flags & ONLY_STDERR])
        first = self.order[0]
        return bytes([first, 1 - first])

    @property
    def counted(self) -> bool:
        """Whether the writes are counted."""
        return bool(self.flags & COUNTED)

    @property
    def settled(self) -> bool:
        """Whether every byte up to the sizes has its write in the records so far."""
        return bool(self.flags & SETTLED)

    def pack(self) -> bytes:
        """Return the record's bytes."""
        return HEADER.pack(self.time_ns, *self.ends, self.flags, self.writes) + self.order


def make_record(time_ns: int, ends: tuple[int, int], order: bytes, quality: int) -> Record:
    """Return a record of these writes; ``quality`` is any of COUNTED and SETTLED."""
    if len(set(order)) == 2:
        return Record(time_ns, ends, quality | MIXED, len(order), order)
    only_stderr = ONLY_STDERR if order[:1] == b"\1" else 0
    return Record(time_ns, ends, quality | only_stderr, len(order))


def unpack_records(data: bytes) -> Iterator[tuple[int, int, Record]]:
    """Yield the whole records in a part of an index, each with its beginning and its end in the part."""
    begin = 0
    while begin + HEADER.size <= len(data):
        time_ns, out_end, err_end, flags, writes = HEADER.unpack_from(data, begin)
        body = begin + HEADER.size
        end = body + (writes if flags & MIXED else 0)
        if end > len(data):
            return
        yield begin, end, Record(time_ns, (out_end, err_end), flags, writes, data[body:end])
        begin = end


class IndexReader:
    """Reads an index that is still being written.

    Args:
        path: the index.
        start: where to begin: `position` of another reader.
    """

    def __init__(self, path: str, start: int = 0) -> None:
        self._path = path
        self._fd = -1
        self._start = start
        self._last: tuple[int, Record] | None = None

    @property
    def position(self) -> int:
        """Where the last record begins, which may still be replaced."""
        return self._start if self._last is None else self._last[0]

    def new_records(self) -> list[Record]:
        """Return what has been added since the last call; of a record that was replaced, only what is new."""
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return []
        start = self.position
        size = os.fstat(self._fd).st_size
        data = os.pread(self._fd, size - start, start) if size > start else b""
        records = [(start + begin, record) for begin, _, record in unpack_records(data)]
        if not records:
            return []
        previous, self._last = self._last, records[-1]
        fresh = [record for _, record in records]
        if previous is not None:
            old, new = previous[1], fresh[0]
            fresh[:1] = [] if new == old else [new._replace(writes=new.writes - old.writes)]
        return fresh

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
