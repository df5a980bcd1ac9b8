"""What Linux offers and Python does not wrap: inotify and two process controls.

Everything degrades: without Linux the controls do nothing and `Inotify.open` returns None, upon which
callers look at the files from time to time instead.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections import namedtuple
from collections.abc import Sequence

from trainyard.system.identity import stat_fields

IS_LINUX = sys.platform.startswith("linux")

IN_MODIFY = 0x2
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_Q_OVERFLOW = 0x4000

_PR_SET_CHILD_SUBREAPER = 36
_EVENT = struct.Struct("iIII")
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
READ_SIZE = 1 << 20
# An event with a name of up to 16 bytes ("stdout.log") and one without.
_NAME_BYTES = 16
_PAIR_BYTES = 2 * _EVENT.size + _NAME_BYTES
_PAIR_WORDS = _PAIR_BYTES // 4

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process."""
    if IS_LINUX:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_title(title: str) -> None:
    """Show a process under this title in `ps`, in place of its command line; cut if it is longer."""
    if not IS_LINUX:
        return
    fields = stat_fields(os.getpid())
    if fields is not None:
        start, end = int(fields[45]), int(fields[46])  # where the kernel reads the command line
        if 0 < start < end:
            size = end - start
            ctypes.memmove(start, os.fsencode(title)[: size - 1].ljust(size, b"\0"), size)


class Changes(namedtuple("Changes", "watches overflow")):
    """What has changed: the numbers of the watches, in order, and whether the queue has lost some.

    Numbers below 256 may come as `bytes`, which are a sequence of numbers too, and quicker to handle.
    """

    __slots__ = ()
    watches: Sequence[int]
    overflow: bool


class Inotify:
    """A queue of changes of watched files. `fileno` can be polled."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls) -> Inotify | None:
        """Return a new queue, or None where there is none to be had (another system, or a limit reached)."""
        if not IS_LINUX:
            return None
        fd = _libc.inotify_init1(_NONBLOCK_CLOEXEC)
        return None if fd < 0 else cls(fd)

    def fileno(self) -> int:
        """Return the file descriptor to poll for input."""
        return self._fd

    def add(self, path: str, mask: int = IN_MODIFY) -> int | None:
        """Watch a path; returns the watch's number, or None when it cannot be watched."""
        watch = int(_libc.inotify_add_watch(self._fd, os.fsencode(path), mask))
        return None if watch < 0 else watch

    def remove(self, watch: int) -> None:
        """Stop a watch."""
        _libc.inotify_rm_watch(self._fd, watch)

    def read(self) -> Changes:
        """Return the changes since the last call. Those of files in a watched directory are left out."""
        try:
            data = os.read(self._fd, READ_SIZE)
        except BlockingIOError:
            return Changes(b"", overflow=False)
        watches = _file_watches(data)
        return Changes(watches, False) if watches is not None else _parse_events(data)

    def read_names(self) -> list[tuple[int, str]]:
        """Return the changes in watched directories since the last call: watch and name of the entry.

        The watch is -1 where the queue has lost some.
        """
        try:
            data = os.read(self._fd, READ_SIZE)
        except BlockingIOError:
            return []
        changes, offset = [], 0
        while offset < len(data):
            watch, _, _, length = _EVENT.unpack_from(data, offset)
            name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
            changes.append((watch, os.fsdecode(name)))
            offset += _EVENT.size + length
        return changes

    def close(self) -> None:
        """Close the queue."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _file_watches(data: bytes) -> Sequence[int] | None:
    """Read pairs of events, of a directory and of a file in it, without a loop; None for anything else."""
    if not data or len(data) % _PAIR_BYTES:
        return None
    words = memoryview(data).cast("i")
    count = len(data) // _PAIR_BYTES
    first_lengths = words[3::_PAIR_WORDS].tolist()
    second_lengths = words[11::_PAIR_WORDS].tolist()
    if not first_lengths.count(_NAME_BYTES) == second_lengths.count(0) == count:
        return None
    watches = words[8::_PAIR_WORDS].tolist()
    return bytes(watches) if max(watches) < 256 else watches


def _parse_events(data: bytes) -> Changes:
    watches: list[int] = []
    overflow, offset = False, 0
    while offset < len(data):
        watch, mask, _, length = _EVENT.unpack_from(data, offset)
        if mask & IN_Q_OVERFLOW:
            overflow = True
        elif not length:
            watches.append(watch)
        offset += _EVENT.size + length
    return Changes(watches, overflow)
