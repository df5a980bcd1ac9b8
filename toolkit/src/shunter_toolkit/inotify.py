"""File-change notification from the kernel, for a whole tree, through ctypes: no package and no polling."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct

from . import kernel

MODIFY, CLOSE_WRITE, MOVED_TO, CREATE = 0x2, 0x8, 0x80, 0x100
_ISDIR, _OVERFLOW, _ONLYDIR = 0x40000000, 0x4000, 0x01000000
_EVENT = struct.Struct("iIII")


class Tree:
    """Watches a folder and all below it.

    Raises:
        OSError: the kernel has no inotify, or the user's limit of watches is reached.
    """

    def __init__(self, root: str) -> None:
        self._libc = kernel.c_library()
        self._folders: dict[int, str] = {}
        #: Files that were renamed into place, and not written since: they are complete.
        self.renamed: set[str] = set()
        self.descriptor = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._add(root)

    def changes(self) -> tuple[set[str], set[str]]:
        """What happened since the last call: files now complete, and files being written. Full paths.

        Files in a folder that appeared count as complete: they may have been written before it was watched.
        """
        complete: set[str] = set()
        growing: set[str] = set()
        try:
            data = os.read(self.descriptor, 256 * 1024)
        except BlockingIOError:
            return complete, growing
        position = 0
        while position < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = data[position : position + length].rstrip(b"\0").decode("utf-8", "surrogateescape")
            position += length
            self._take(watch, mask, name, complete, growing)
        return complete, growing - complete

    def _take(self, watch: int, mask: int, name: str, complete: set[str], growing: set[str]) -> None:
        if mask & _OVERFLOW:
            for folder in list(self._folders.values()):
                complete.update(_files(folder))
            return
        path = os.path.join(self._folders.get(watch, ""), name)
        if mask & _ISDIR:
            if mask & (CREATE | MOVED_TO):
                found = self._add(path)
                complete.update(found)
                if mask & MOVED_TO:
                    self.renamed.update(found)
        elif mask & (CLOSE_WRITE | MOVED_TO):
            complete.add(path)
            growing.discard(path)
            if mask & MOVED_TO:
                self.renamed.add(path)
        elif mask & MODIFY:
            growing.add(path)
            complete.discard(path)
            self.renamed.discard(path)

    def _add(self, folder: str) -> set[str]:
        """Watch a folder and those below it; return the files found there.

        Each folder is watched before it is listed: a file that appears in between is seen twice, not missed.
        """
        flags = MODIFY | CLOSE_WRITE | MOVED_TO | CREATE | _ONLYDIR
        watch = self._libc.inotify_add_watch(self.descriptor, os.fsencode(folder), flags)
        if watch < 0 and ctypes.get_errno() == errno.ENOENT:
            return set()  # gone again already
        self._folders[self._checked(watch)] = folder
        found: set[str] = set()
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found |= self._add(entry.path)
                else:
                    found.add(entry.path)
        return found

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "inotify")
        return result

    def close(self) -> None:
        """Stop watching."""
        os.close(self.descriptor)


def _files(folder: str) -> set[str]:
    return {os.path.join(where, name) for where, _, names in os.walk(folder) for name in names}
