"""Reading files that others may have put in place: never a FIFO or a device, never without end."""

from __future__ import annotations

import errno
import os
import stat

#: Configuration, ignore files and the like are never larger.
LARGEST = 16 << 20


def read_ordinary(path: str, largest: int = LARGEST, *, special: bool = False) -> bytes:
    """Return the content of an ordinary file.

    Args:
        path: the file.
        largest: how many bytes it may have.
        special: whether a pipe or device is read too, such as a shell's ``/dev/fd/63``.

    Raises:
        OSError: it cannot be read, is no ordinary file, or is too large; ``strerror`` says which.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags if special else flags | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory", path)
        if not stat.S_ISREG(mode) and not special:
            raise OSError(errno.EINVAL, "it is a fifo, a socket or a device, not an ordinary file", path)
        content = file.read(largest + 1)
        if len(content) > largest:
            raise OSError(errno.EFBIG, f"it is larger than {largest >> 10} KiB", path)
        return content
