"""What file systems do beyond Python's own functions, where they do it."""

from __future__ import annotations

import errno
import fcntl
import os
import sys

from shunter.system.platform_choice import IS_LINUX

_ZEROS = bytes(1 << 20)


def reserve_space(fd: int, size: int) -> None:
    """Reserve space on the disk for a file, so that later writes to it cannot fail for lack of space."""
    if sys.platform == "linux" and IS_LINUX:
        os.posix_fallocate(fd, 0, size)
        return
    while size > 0:
        size -= os.write(fd, _ZEROS[:size])


def has_writer(path: str) -> bool:
    """Tell whether a process has a file open for writing. False if that is not known.

    A lease for reading is granted only while no process has (fcntl(2), F_SETLEASE).
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        if sys.platform == "linux" and IS_LINUX:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(fd)
    return False


def memory_directory() -> str:
    """Return a directory whose files are in memory, never on a disk; "" without one."""
    path = "/dev/shm"
    return path if os.path.isdir(path) and os.access(path, os.W_OK) else ""


def is_pipe_path(path: str) -> bool:
    """Tell whether a path names an open descriptor, as a shell's ``<(...)`` does."""
    return path.startswith(("/dev/", "/proc/"))
