"""File locks (flock(2)): whether another process holds one."""

from __future__ import annotations

import fcntl
import os


def is_locked(path: str) -> bool:
    """Tell whether a process holds the exclusive lock of a file; False if the file cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
