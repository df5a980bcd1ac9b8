"""Passes a child's output on, byte for byte, and keeps its tail. Only `Relay.drain` may block."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
from collections.abc import Callable

from . import kernel

TAIL_BYTES = 64 * 1024
READ_BYTES = 1024 * 1024
_SAFE_WRITE = 4096  # what a pipe that polls writable takes without blocking (PIPE_BUF)
_F_SETPIPE_SZ = 1031


class Relay:
    """One stream of a child, copied to one of our own descriptors.

    Args:
        target: the descriptor that the bytes go to.
        observe: called with each block as it passes; it must not keep the supervisor long.
    """

    def __init__(self, target: int, observe: Callable[[bytes], None] | None = None) -> None:
        self.source, self.child_end = os.pipe()
        self.tail = b""
        self.ended = False
        self._observe = observe
        self._pending = memoryview(b"")
        self.target, self._chunk = _nonblocking_view(target)  # the descriptor to poll while bytes wait
        self._own_target = self.target != target
        self._broken = False
        os.set_blocking(self.source, False)
        _widen(self.source)

    @property
    def waiting_for_target(self) -> bool:
        """Whether bytes wait for the target; until they are gone, nothing more is read."""
        return bool(self._pending)

    def close_child_end(self) -> None:
        """Close our copy of the child's end, so that its exit gives end of file here."""
        if self.child_end >= 0:
            os.close(self.child_end)
            self.child_end = -1

    def pump(self) -> bool:
        """Pass on the bytes that wait for the target, or what can be read. False at the end of the stream."""
        if self._pending or self._read():
            self._flush()
        return not self.ended

    def _read(self) -> bool:
        """Read what there is; False if there is nothing now, or at the end of the stream."""
        try:
            data = os.read(self.source, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.ended = True
            return False
        self.tail = data[-TAIL_BYTES:] if len(data) >= TAIL_BYTES else (self.tail + data)[-TAIL_BYTES:]
        if self._observe is not None:
            self._observe(data)
        self._pending = memoryview(data)
        return True

    def _flush(self) -> None:
        """Write what the target takes now. If the target is gone, drop the rest: the script continues."""
        while self._pending and not self._broken:
            try:
                written = os.write(self.target, self._pending[: self._chunk])
            except BlockingIOError:
                return
            except OSError:
                self._broken = True
                break
            self._pending = self._pending[written:]
            if self._chunk == _SAFE_WRITE:
                break  # poll again before the next write: this descriptor could block
        if self._broken:
            self._pending = memoryview(b"")

    def drain(self) -> None:
        """Pass on all that is left in the pipe; wait for the target if necessary, but not for more input."""
        poll = select.poll()
        poll.register(self.target, select.POLLOUT)
        while self._pending or self._read():
            poll.poll()
            self._flush()

    def close(self) -> None:
        """Close our descriptors; the target itself stays open."""
        self.close_child_end()
        if self.source >= 0:
            os.close(self.source)
            self.source = -1
        if self._own_target:
            self._own_target = False
            os.close(self.target)


def _nonblocking_view(target: int) -> tuple[int, int]:
    """A descriptor for ``target`` that never blocks, and how much may be written at once.

    O_NONBLOCK belongs to the open file, which the child and our parent share, so the same pipe or terminal is
    opened a second time with it. What cannot be opened again is written in small pieces.
    """
    mode = os.fstat(target).st_mode
    if stat.S_ISREG(mode):
        return target, 1 << 30
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        return os.open(kernel.path_of(target), flags), 1 << 30
    except OSError:
        return target, _SAFE_WRITE


def _widen(pipe: int) -> None:
    """Let a pipe hold as much as is read at once, where that can be set."""
    with contextlib.suppress(OSError):  # over the user's limit: the usual 64 KiB will do
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, READ_BYTES)


def is_regular_file(descriptor: int) -> bool:
    """Whether a descriptor writes to a plain file, whose tail can be read back afterwards."""
    try:
        is_plain = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return is_plain and os.access(kernel.path_of(descriptor), os.R_OK)
    except OSError:
        return False


def read_back(descriptor: int, since: int) -> bytes:
    """The last bytes of the plain file behind a descriptor, not reaching back before offset ``since``."""
    try:
        with open(kernel.path_of(descriptor), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since, size - TAIL_BYTES))
            return file.read()
    except OSError:
        return b""
