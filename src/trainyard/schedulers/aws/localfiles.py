"""Listing the files below a directory of this machine, for data of jobs."""

from __future__ import annotations

import os
import stat


def files_below(root: str) -> dict[str, str]:
    """Return the files of a directory: name below it -> path.

    Links are followed, except those to a directory above them. Broken links, sockets and FIFOs are left out.

    Raises:
        OSError: a directory cannot be read.
    """
    found: dict[str, str] = {}
    info = os.stat(root)
    _collect(root, "", {(info.st_dev, info.st_ino)}, found)
    return found


def _collect(directory: str, prefix: str, above: set[tuple[int, int]], found: dict[str, str]) -> None:
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        path = os.path.join(directory, name)
        try:
            info = os.stat(path)
        except FileNotFoundError:
            continue  # a link to nothing
        except OSError:
            if not os.path.islink(path):
                raise
            continue  # links that lead to each other
        identity = (info.st_dev, info.st_ino)
        if stat.S_ISREG(info.st_mode):
            found[prefix + name] = path
        elif stat.S_ISDIR(info.st_mode) and identity not in above:
            _collect(path, f"{prefix}{name}/", above | {identity}, found)
