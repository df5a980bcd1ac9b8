"""Directories of jobs: how much they take, whether they hold results, and removing them."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def size_of(roots: Iterable[str]) -> int:
    """Return how many bytes directories take on the disk, each file counted once."""
    files: dict[tuple[int, int], int] = {}
    for root in roots:
        for directory, _, names in os.walk(root):
            for name in names:
                try:
                    info = os.lstat(os.path.join(directory, name))
                except OSError:
                    continue
                files[info.st_dev, info.st_ino] = info.st_blocks * 512
    return sum(files.values())


def has_results(root: str) -> bool:
    """Tell whether a script wrote results below a directory of base directories, one for each replica."""
    try:
        bases = [entry.path for entry in os.scandir(root)]
    except OSError:
        return False
    kept = [os.path.join(base, part) for base in bases for part in ("model", "output/data", "checkpoints")]
    return any(names for top in kept for _, _, names in os.walk(top))


def remove_tree(path: str) -> None:
    """Remove a directory with all that is in it, also what its owner made read-only. A missing one is none.

    Raises:
        OSError: something cannot be removed.
    """
    import shutil

    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except PermissionError:
        for directory, _, _ in os.walk(path):  # from the top, so that what was closed is walked too
            if not os.access(directory, os.W_OK | os.X_OK | os.R_OK):
                os.chmod(directory, 0o700)
        shutil.rmtree(path)
