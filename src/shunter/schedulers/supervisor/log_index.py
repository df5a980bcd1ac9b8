"""The index beside a replica's two logs: how large they were at which times.

stdout and stderr are two plain files that the replica writes to directly, which loses the order between them
and the times. So the supervisor watches the files and appends records to the index: the time in nanoseconds
since the epoch, and the sizes of both files then. The last record may still be replaced by a later one.
`log_reader` merges the two files by it.
"""

from __future__ import annotations

import struct
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
