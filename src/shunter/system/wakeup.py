"""Ending a thread's wait by a signal, or from another thread."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable


class Wakeup:
    """A file descriptor that becomes readable when one of some signals comes, whichever thread it reaches.

    All other signals keep their handlers.
    """

    def __init__(self, signums: Iterable[int]) -> None:
        self._in, self._out = os.pipe()
        for fd in (self._in, self._out):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._out, warn_on_full_buffer=False)
        # not SIG_IGN, which programs would inherit
        self._before = {signum: signal.signal(signum, lambda *_: None) for signum in signums}

    def fileno(self) -> int:
        """Return the file descriptor to poll for input."""
        return self._in

    def wake(self) -> None:
        """End the wait from another thread."""
        try:
            os.write(self._out, b"\0")
        except BlockingIOError:  # the pipe is full, so the thread wakes up anyway
            pass

    def read(self) -> bytes:
        """Return the numbers of the signals that have come; 0 for a call of `wake`."""
        try:
            return os.read(self._in, 4096)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Give the signals their former handlers back."""
        signal.set_wakeup_fd(-1)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        for fd in (self._in, self._out):
            os.close(fd)
