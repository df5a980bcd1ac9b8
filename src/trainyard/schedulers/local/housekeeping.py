"""Removing what old jobs have left behind."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from trainyard.errors import StateStoreError
from trainyard.paths import view_dir
from trainyard.schedulers.exec import directories
from trainyard.schedulers.exec.process import job_directory, recovery
from trainyard.schedulers.exec.process.job_directory import JobDir
from trainyard.specs.status import AppState, is_terminal

#: A submission takes no longer than this, so that what is older was interrupted.
SUBMISSION_SECONDS = 3600.0


class Garbage(NamedTuple):
    """A job that has ended long enough ago. ``results`` tells whether its script wrote some."""

    path: str
    app_id: str
    size: int
    age: float
    results: bool = False


def find(older_than_s: float) -> list[Garbage]:
    """Return the jobs that ended more than this many seconds ago, with size in bytes and age in seconds."""
    now = time.time()
    garbage = []
    for job in job_directory.all_jobs():
        state = recovery.current_state(job)
        if state is None or not is_terminal(AppState[state["state"]]):
            continue
        age = now - (state["ended_at"] or now)
        if age >= older_than_s:
            kept = directories.has_results(job.file("ml"))
            garbage.append(Garbage(job.path, job.app_id, size_of(job), age, kept))
    for job in job_directory.interrupted_submissions():
        age = now - os.stat(job.path).st_mtime
        if age >= max(older_than_s, SUBMISSION_SECONDS):
            garbage.append(Garbage(job.path, job.app_id, size_of(job), age))
    for job in _views_without_job():
        age = now - os.lstat(view_dir(job.app_id)).st_ctime
        if age >= max(older_than_s, SUBMISSION_SECONDS):
            garbage.append(Garbage(view_dir(job.app_id), job.app_id, size_of(job), age))
    return garbage


def _views_without_job() -> list[JobDir]:
    """Return the jobs that do not exist though there is a working directory for them."""
    try:
        names = sorted(os.listdir(os.path.dirname(view_dir(""))))
    except OSError:
        return []
    jobs = [JobDir.of(name) for name in names if not name.startswith(".")]
    return [job for job in jobs if not os.path.lexists(job.path)]


def collect(items: list[Garbage]) -> int:
    """Remove jobs; returns how many bytes that frees.

    Raises:
        StateStoreError: one cannot be removed; the others are.
    """
    freed, problems = 0, []
    for item in items:
        try:
            remove_job(JobDir.of(item.app_id))
            freed += item.size
        except StateStoreError as error:
            problems.append(error.message)
    if problems:
        raise StateStoreError("; ".join(problems), hint="Mend the permissions and try again.")
    return freed


def remove_job(job: JobDir) -> None:
    """Remove a job's directory with its results, its logs, wherever they are, and its working directory.

    Raises:
        StateStoreError: something cannot be removed.
    """
    if os.path.lexists(view_dir(job.app_id)):
        from trainyard.workspace.directory_shipment import remove_view

        remove_view(job.app_id)
    for path in dict.fromkeys([recovery.log_root(job, recovery.replica_layout(job)), job.path]):
        try:
            directories.remove_tree(path)
        except OSError as error:
            raise StateStoreError(f"cannot remove {error.filename or path}: {error.strerror}") from error


def size_of(job: JobDir) -> int:
    """Return how many bytes a job takes on the disk, logs included."""
    roots = [job.path, recovery.log_root(job, recovery.replica_layout(job)), view_dir(job.app_id)]
    return directories.size_of(dict.fromkeys(roots))
