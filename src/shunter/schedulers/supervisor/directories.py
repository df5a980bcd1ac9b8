"""Directories of jobs: how much they take, whether they hold results, and removing what is left of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from shunter.errors import StateStoreError
from shunter.schedulers.responses import Leftover


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


def remove_leftovers(items: Iterable[Leftover], remove: Callable[[Leftover], object]) -> int:
    """Remove each of some leftovers; returns how many bytes that frees.

    Raises:
        StateStoreError: one cannot be removed; the others are.
    """
    freed, problems = 0, []
    for item in items:
        try:
            remove(item)
            freed += item.size
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"cannot remove {item.id}: {error.strerror or error}")
        except StateStoreError as error:
            problems.append(error.message)
    if problems:
        raise StateStoreError("; ".join(problems), hint="Fix the permissions and try again.")
    return freed


def has_results(root: str) -> bool:
    """Tell whether a script wrote results below a directory of base directories, one for each replica."""
    try:
        bases = [entry.path for entry in os.scandir(root)]
    except OSError:
        return False
    kept = [os.path.join(base, part) for base in bases for part in ("model", "output/data", "checkpoints")]
    return any(names for top in kept for _, _, names in os.walk(top))
