"""Reading files that another user may have created: never a FIFO or a device, never without a limit."""

from __future__ import annotations

import errno
import os
import stat

#: Configuration, ignore files and the like are never larger.
LARGEST = 16 << 20


def read_regular_file(path: str, largest: int = LARGEST, *, special: bool = False) -> bytes:
    """Return the content of a regular file of at most ``largest`` bytes.

    With ``special`` a pipe or device is read too, such as a shell's ``/dev/fd/63``.

    Raises:
        OSError: it cannot be read, is not a regular file, or is too large; ``strerror`` says which.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags if special else flags | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory", path)
        if not stat.S_ISREG(mode) and not special:
            raise OSError(errno.EINVAL, "it is a FIFO, a socket or a device, not a regular file", path)
        content = file.read(largest + 1)
        if len(content) > largest:
            raise OSError(errno.EFBIG, f"it is larger than {largest >> 10} KiB", path)
        return content
