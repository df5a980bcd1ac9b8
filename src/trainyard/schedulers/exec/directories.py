"""Directories of jobs: how much they take, and whether they hold results."""

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
