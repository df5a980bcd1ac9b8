"""What Linux offers and Python does not wrap: inotify and two process controls.

Everything degrades: without Linux the controls do nothing and `Inotify.open` returns None, upon which
callers look at the files from time to time instead.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import sys
from typing import NamedTuple

IS_LINUX = sys.platform.startswith("linux")
HAS_PROC = os.path.exists("/proc/self/stat")

IN_MODIFY = 0x2
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_Q_OVERFLOW = 0x4000

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_EVENT = struct.Struct("iIII")
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
READ_SIZE = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process."""
    if IS_LINUX:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when its parent ends."""
    if IS_LINUX:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)


class Event(NamedTuple):
    """A change of a watched file or directory."""

    watch: int
    mask: int


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

    def read(self) -> list[Event]:
        """Return the changes since the last call, in order; empty when there are none."""
        try:
            data = os.read(self._fd, READ_SIZE)
        except BlockingIOError:
            return []
        except OSError as error:
            if error.errno == errno.EINVAL:
                return []
            raise
        events, offset = [], 0
        while offset < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, offset)
            events.append(Event(watch, mask))
            offset += _EVENT.size + length
        return events

    def close(self) -> None:
        """Close the queue."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
