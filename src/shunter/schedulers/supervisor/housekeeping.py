"""What jobs leave on this machine, and its removal."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator

from shunter.errors import StateStoreError
from shunter.paths import remove_tree, view_dir
from shunter.schedulers.api import Leftover
from shunter.schedulers.supervisor import directories, recovery
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs.status import AppState, is_terminal
from shunter.workspace.directory_shipment import remove_view

#: A submission takes no longer than this, so that what is older was interrupted.
SUBMISSION_SECONDS = 3600.0


def leftovers(kind: type[JobDirectory], older_than: float) -> list[Leftover]:
    """Return jobs that ended more than ``older_than`` seconds ago, and what interrupted submissions left."""
    found = [item for item in _ended_jobs(kind) if item.age >= older_than]
    limit = max(older_than, SUBMISSION_SECONDS)
    return found + [item for item in _interrupted_submissions(kind) if item.age >= limit]


def _ended_jobs(kind: type[JobDirectory]) -> Iterator[Leftover]:
    now = time.time()
    for job in kind.all():
        state = recovery.current_state(job)
        if state is not None and is_terminal(AppState[state["state"]]):
            age = now - (state["ended_at"] or now)
            results = directories.has_results(job.file("ml")) or _points_wrote(job)
            yield Leftover(job.name, job.path, age, size_of(job), job.name, results)


def _points_wrote(job: JobDirectory) -> bool:
    """Tell whether points of a sweep wrote files in their working directories."""
    request = job.read_request() or {}
    if not request.get("own_directories"):
        return False
    for role, replica, _ in job.layout():
        for directory, folders, names in os.walk(job.own_directory(role, replica)):
            folders[:] = [name for name in folders if name != "__pycache__"]
            found = [os.lstat(os.path.join(directory, name)) for name in names]
            # copies keep the times of their originals
            if any(stat.S_ISREG(each.st_mode) and each.st_mtime > request["created_at"] for each in found):
                return True
    return False


def _interrupted_submissions(kind: type[JobDirectory]) -> Iterator[Leftover]:
    """Yield directories without a job in them, and working directories without a job's directory."""
    now = time.time()
    for job in kind.directories():
        if not job.exists():
            age = now - os.stat(job.path).st_mtime
            yield Leftover(job.name, job.path, age, size_of(job), job.name)
    try:
        names = sorted(os.listdir(os.path.dirname(view_dir("")))) if kind.HAS_VIEWS else []
    except OSError:
        return
    for name in names:
        job, view = kind.of(name), view_dir(name)
        if not name.startswith(".") and not os.path.lexists(job.path):
            yield Leftover(name, view, now - os.lstat(view).st_ctime, size_of(job), name)


def remove(kind: type[JobDirectory], items: Iterable[Leftover]) -> int:
    """Remove what `leftovers` found; returns how many bytes that frees.

    Raises:
        StateStoreError: one cannot be removed; the others are.
    """
    return directories.remove_leftovers(items, lambda item: remove_job(kind.of(item.app_id)))


def remove_job(job: JobDirectory) -> None:
    """Remove a job's directory with its results, its logs, wherever they are, and its working directory.

    Raises:
        StateStoreError: something cannot be removed.
    """
    job.remove_belongings()
    if os.path.lexists(view_dir(job.name)):
        remove_view(job.name)
    for path in dict.fromkeys([job.log_root(job.layout()), job.path]):
        try:
            remove_tree(path)
        except OSError as error:
            raise StateStoreError(f"cannot remove {error.filename or path}: {error.strerror}") from error


def size_of(job: JobDirectory) -> int:
    """Return how many bytes a job takes on the disk, logs included."""
    return directories.size_of(dict.fromkeys([job.path, job.log_root(job.layout()), view_dir(job.name)]))
