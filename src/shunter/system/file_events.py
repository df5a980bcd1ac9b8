"""Events in watched files and directories, by inotify(7). Elsewhere callers look from time to time."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

from shunter.system.platform_choice import IS_LINUX

# Masks of what happens to a watched file or in a watched directory.
MODIFIED = 0x2
MOVED_TO = 0x80
CREATED = 0x100

_OVERFLOW = 0x4000
_READ_SIZE = 1 << 20
_EVENT = struct.Struct("iIII")
_LIBC = ctypes.CDLL(None)


class FileChanges(NamedTuple):
    """The numbers of the watches whose files have changed, and whether the queue has lost some."""

    watches: set[int]
    overflow: bool


def open_file_events() -> FileEvents | None:
    """Return a new queue of file events; None without inotify, or if the limit of such queues is reached."""
    descriptor = int(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)) if IS_LINUX else -1
    return None if descriptor < 0 else FileEvents(descriptor)


class FileEvents:
    """A queue of events. Made by `open_file_events`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the file descriptor to poll for input."""
        return self._descriptor

    def add(self, path: str, mask: int = MODIFIED) -> int | None:
        """Watch a path. Returns the watch's number, or None if the path cannot be watched."""
        watch = int(_LIBC.inotify_add_watch(self._descriptor, os.fsencode(path), mask))
        return None if watch < 0 else watch

    def read(self) -> FileChanges:
        """Return the changes since the last call."""
        events = self._events()
        return FileChanges({watch for watch, _, _ in events}, any(mask & _OVERFLOW for _, mask, _ in events))

    def read_names(self) -> list[tuple[int, str]]:
        """Return the changes in watched directories since the last call: watch and name of the entry.

        The watch is -1 if the queue has lost changes.
        """
        return [(watch, name) for watch, _, name in self._events()]

    def _events(self) -> list[tuple[int, int, str]]:
        try:
            data = os.read(self._descriptor, _READ_SIZE)
        except BlockingIOError:
            return []
        events, offset = [], 0
        while offset < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, offset)
            name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
            events.append((watch, mask, os.fsdecode(name)))
            offset += _EVENT.size + length
        return events

    def close(self) -> None:
        """Close the queue."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
