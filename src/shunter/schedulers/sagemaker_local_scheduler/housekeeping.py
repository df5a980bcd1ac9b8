"""What jobs leave on this machine, and its removal.

Jobs leave their directories with logs, results without an output_path, code, the cache of S3's data, what a
killed process was writing, and containers and networks whose job is gone. Nothing that a running job needs is
removed: each job has its data for itself, so the cache may go.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator

from shunter.docker.command import DockerCommand, remove_containers, remove_networks
from shunter.errors import ShunterError
from shunter.schedulers.api import Leftover
from shunter.schedulers.sagemaker_local_scheduler import object_cache, submission
from shunter.schedulers.sagemaker_local_scheduler.hosts.host_containers import all_of_jobs
from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings
from shunter.schedulers.sagemaker_local_scheduler.job_status import TERMINAL
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor import directories
from shunter.schedulers.supervisor.recovery import current_state

#: The only thing in a directory of results, which is named by its job.
_OUTPUT = "output"
#: Prefixes of what is still being written, or being removed.
_STAGED = (".new-", ".old-")


def leftovers(older_than: float) -> list[Leftover]:
    """Return what ended, or was last used, at least this many seconds ago."""
    running = _running()
    found = [*_jobs(), *_code(running), *_results(running), *_staged(), *_data(older_than), *_of_daemon()]
    return [item for item in found if item.age >= older_than]


def remove(items: Iterable[Leftover]) -> int:
    """Remove what `leftovers` found, unless a job needs it now; returns how many bytes that frees."""
    running = _running()
    freed = 0
    for item in items:
        kind, _, name = item.id.partition("/")
        if "/" in name or name in ("", ".", "..") or name in running:
            continue
        if kind == "job":
            freed += _remove_job(name)
        elif kind == "data":
            freed += sum(object_cache.discard(entry.path) for entry in _unused(float(name)))
        elif kind == "results":
            freed += _remove_tree(os.path.join(submission.default_output(), name))
        elif kind in ("container", "network"):
            _remove_of_daemon(kind, name)
        elif kind == "staged":
            freed += _remove_tree(os.path.join(TrainingJob.root(), name))
        elif kind == "code" and not _is_needed(name, running):
            freed += _remove_tree(os.path.join(submission.code_dir(), name))
    return freed


def _jobs() -> Iterator[Leftover]:
    now = time.time()
    for job in TrainingJob.all():
        state = current_state(job)
        if state is not None and state["status"] in TERMINAL:
            size = directories.size_of([job.path])
            yield Leftover(f"job/{job.name}", job.path, now - state["modified_at"], size, job.name)


def _running() -> dict[str, str]:
    """Return the channels of the jobs that have not ended, as text, by the jobs' names."""
    found = {}
    for job in TrainingJob.all():
        state = current_state(job)
        if state is None or state["status"] not in TERMINAL:
            document = job.read_request() or {}
            found[job.name] = str(document.get("request", {}).get("InputDataConfig"))
    return found


def _code(running: dict[str, str]) -> Iterator[Leftover]:
    for key in _names(submission.code_dir()):
        path = os.path.join(submission.code_dir(), key)
        if not _is_needed(key, running):
            yield Leftover(f"code/{key}", path, _age(path), directories.size_of([path]))


def _is_needed(key: str, running: dict[str, str]) -> bool:
    """Tell whether a job that has not ended reads this code."""
    return any(key in channels for channels in running.values())


def _results(running: dict[str, str]) -> Iterator[Leftover]:
    """Yield the results of jobs without an output_path. Other results are never removed."""
    root = submission.default_output()
    for name in _names(root):
        path = os.path.join(root, name)
        if name not in running and _names(path) == [_OUTPUT]:
            age = min(map(_age, [path, os.path.join(path, _OUTPUT), *_files(path)]))
            yield Leftover(f"results/{name}", path, age, directories.size_of([path]), name, True)


def remove_results(name: str) -> None:
    """Remove the results of a job without an output_path.

    Raises:
        OSError: they cannot be removed.
    """
    path = os.path.join(submission.default_output(), name)
    if name not in ("", ".", "..") and _names(path) == [_OUTPUT]:
        shutil.rmtree(path)


def _staged() -> Iterator[Leftover]:
    for name in _names(TrainingJob.root()):
        path = os.path.join(TrainingJob.root(), name)
        if name.startswith(_STAGED):
            yield Leftover(f"staged/{name}", path, _age(path), directories.size_of([path]))


def _data(older_than: float) -> Iterator[Leftover]:
    """Yield all objects in the cache that no job has used for this long, as one leftover."""
    unused = list(_unused(older_than))
    if unused:
        size, age = sum(entry.size for entry in unused), min(entry.age for entry in unused)
        yield Leftover(f"data/{older_than}", object_cache.cache_dir(), age, size)


def _unused(older_than: float) -> Iterator[object_cache.CacheEntry]:
    return (entry for entry in object_cache.entries() if entry.age >= older_than)


def _of_daemon() -> Iterator[Leftover]:
    """Yield containers and networks whose job is gone: the job was removed while no daemon answered."""
    if Settings.from_env().docker == "never":
        return
    try:
        found = all_of_jobs(DockerCommand())
    except ShunterError:
        return
    for kind, item, job_dir, age in found:
        if os.path.dirname(job_dir) == TrainingJob.root() and not os.path.lexists(job_dir):
            job = os.path.basename(job_dir)
            yield Leftover(f"{kind}/{item}", f"{kind} {item[:12]} of sagemaker_local", age, 0, job)


def _remove_of_daemon(kind: str, item: str) -> None:
    docker = DockerCommand()
    if kind == "container":
        remove_containers(docker, [item])
    else:
        remove_networks(docker, [item])


def _remove_job(name: str) -> int:
    job = TrainingJob.find(name)
    state = None if job is None else current_state(job)
    if job is None or (state is not None and state["status"] not in TERMINAL):
        return 0
    size = directories.size_of([job.path])
    try:
        job.remove()
    except ShunterError:  # containers are left, and no daemon answers
        return 0
    return size


def _remove_tree(path: str) -> int:
    size = directories.size_of([path])
    shutil.rmtree(path, ignore_errors=True)
    return size - directories.size_of([path])


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _files(path: str) -> list[str]:
    return [os.path.join(where, name) for where, _, names in os.walk(path) for name in names]


def _age(path: str) -> float:
    try:
        return max(0.0, time.time() - os.lstat(path).st_mtime)
    except FileNotFoundError:
        return 0.0
