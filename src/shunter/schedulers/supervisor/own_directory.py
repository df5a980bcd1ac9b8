"""Working directories of the points of a sweep: each has its own, so that none overwrites another's files.

When the sweep is submitted, its directory is frozen: small files are copied; large files, directories of many
files, environments, and directories whose names begin with a dot are linked. When a point starts, it gets a
copy of that. The directories above it have links to what is beside the original, so ``../data`` is found.
"""

from __future__ import annotations

import os
import shutil
from itertools import islice

#: The largest file that is copied, and the most bytes that are copied in all.
LARGEST_FILE, LARGEST_COPY = 4 << 20, 64 << 20
MOST_ENTRIES = 5000
#: How many directories above the original are imitated, and how many entries of each.
LEVELS, MOST_BESIDE = 2, 1000


def freeze(source: str, target: str) -> None:
    """Make a copy of a directory for `make_own`, with links to what is not copied.

    Raises:
        OSError: it cannot be made.
    """
    os.makedirs(target, mode=0o700)
    room, left = LARGEST_COPY, MOST_ENTRIES
    pending = [(source, target)]
    while pending:
        here, there = pending.pop(0)
        entries = _entries(here, left)
        if here != source and (entries is None or len(entries) > left):
            os.rmdir(there)
            os.symlink(here, there)
            continue
        entries = entries or []
        left -= len(entries)
        for entry in entries:
            copy = os.path.join(there, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if entry.name == "__pycache__":
                    continue
                if not _is_linked(entry.path, target):
                    os.mkdir(copy)
                    pending.append((entry.path, copy))
                    continue
            elif entry.is_file(follow_symlinks=False):
                size = entry.stat().st_size
                if size <= min(LARGEST_FILE, room) and _copy(entry.path, copy):
                    room -= size
                    continue
            os.symlink(entry.path, copy)


def _entries(path: str, most: int) -> list[os.DirEntry[str]] | None:
    """Return the entries of a directory, at most one more than ``most``; None if it cannot be read."""
    try:
        with os.scandir(path) as found:
            return list(islice(found, most + 1))
    except OSError:
        return None


def _is_linked(path: str, target: str) -> bool:
    """Tell whether a directory is linked as a whole: an environment, a repository, or what holds the copy."""
    if os.path.basename(path).startswith(".") or os.path.exists(os.path.join(path, "pyvenv.cfg")):
        return True
    return os.path.realpath(target).startswith(os.path.realpath(path) + os.sep)


def _copy(source: str, target: str) -> bool:
    """Copy a file; returns False if it cannot be read."""
    if not os.access(source, os.R_OK):
        return False
    shutil.copy2(source, target)
    return True


def names_of(source: str) -> list[str]:
    """Return the last names of a directory's path, which those made for points have too."""
    return [name for name in source.split(os.sep) if name][-LEVELS:]


def make_own(template: str, beside: str, target: str) -> None:
    """Make the directory of a point, unless it has one already, from an earlier attempt.

    Args:
        template: what `freeze` made, or a workspace's directory.
        beside: the directory whose neighbours it can see; "" for none.
        target: its path, which ends with `names_of` that directory.

    Raises:
        OSError: it cannot be made.
    """
    if os.path.isdir(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    original, own = beside, target
    for _ in names_of(beside):
        parent, above = os.path.dirname(original), os.path.dirname(own)
        try:
            names = list(islice(os.listdir(parent), MOST_BESIDE))
        except OSError:
            break
        for name in names:
            if not os.path.lexists(os.path.join(above, name)) and name != os.path.basename(original):
                os.symlink(os.path.join(parent, name), os.path.join(above, name))
        original, own = parent, above
    partial = f"{target}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(template, partial, symlinks=True)
    os.rename(partial, target)
