"""What file systems do beyond Python's own functions, where they do it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sys

from shunter.system.platform_choice import IS_LINUX

_ZEROS = bytes(1 << 20)
_PIECE = 1 << 20
#: Why the kernel may not copy from one file to another by itself.
_NO_COPY = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY})


def reserve_space(fd: int, size: int) -> None:
    """Reserve space on the disk for a file, so that later writes to it cannot fail for lack of space."""
    if sys.platform == "linux" and IS_LINUX:
        os.posix_fallocate(fd, 0, size)
        return
    while size > 0:
        size -= os.write(fd, _ZEROS[:size])


def copy_content(source: str, path: str) -> None:
    """Copy a file's content to a new file. Both share their blocks where the file system can do that.

    Raises:
        OSError: the source cannot be read, or the new file exists or cannot be written.
    """
    with open(source, "rb", buffering=0) as content, open(path, "xb") as target:
        if sys.platform == "linux" and IS_LINUX:
            try:
                while os.copy_file_range(content.fileno(), target.fileno(), 1 << 30):
                    pass
            except OSError as error:
                if error.errno not in _NO_COPY:
                    raise
        shutil.copyfileobj(content, target, _PIECE)  # the rest


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


def opened_path(descriptor: int) -> str:
    """Return the path of the file behind one of this process's descriptors, where the system tells it.

    Raises:
        OSError: it does not.
    """
    return os.readlink(f"/proc/self/fd/{descriptor}")
