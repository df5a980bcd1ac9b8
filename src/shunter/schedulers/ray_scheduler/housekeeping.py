"""Find and remove logs of jobs on Ray that are kept on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from urllib.parse import unquote

from shunter.schedulers.ray_scheduler.logs import kept_dir, kept_path
from shunter.schedulers.responses import Leftover
from shunter.schedulers.supervisor import directories


def leftovers(older_than: float) -> list[Leftover]:
    """Return logs that were last written more than this many seconds ago."""
    found, now = [], time.time()
    try:
        entries = sorted(os.scandir(kept_dir()), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    for entry in entries:
        info = entry.stat(follow_symlinks=False)
        age = now - info.st_mtime
        if age >= older_than:
            app_id = unquote(entry.name.partition(".log")[0])
            found.append(Leftover(entry.path, entry.path, age, info.st_size, app_id))
    return found


def remove(items: Iterable[Leftover]) -> int:
    """Remove what `leftovers` found; returns how many bytes that frees.

    Raises:
        StateStoreError: one cannot be removed; the others are.
    """
    return directories.remove_leftovers(items, lambda item: os.remove(item.id))


def forget(app_id: str) -> None:
    """Remove the log of a job that is kept here, if there is one."""
    try:
        os.remove(kept_path(app_id))
    except FileNotFoundError:
        pass
