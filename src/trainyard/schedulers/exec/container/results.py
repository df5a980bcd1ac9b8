"""Where the results of a job's containers are kept on this machine: a directory for each replica.

::

    STATE/docker/APP_ID/ROLE-K/   model, output, checkpoints and input of replica K, mounted below /opt/ml

A daemon on another machine has no use for these: the results stay in the containers there.
"""

from __future__ import annotations

import os

from trainyard.errors import BackendError
from trainyard.paths import make_private_dir, state_dir, state_error
from trainyard.schedulers.exec import directories

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


#: What is said where results are not kept on this machine.
IN_CONTAINERS = "/opt/ml of its containers, until it is deleted (docker cp)"


def root() -> str:
    """Return the directory that holds a directory for each job."""
    return os.path.join(state_dir(), "docker")


def directory_of(app_id: str) -> str:
    """Return the directory of a job's results."""
    return os.path.join(root(), app_id)


def make(app_id: str, sources: Collection[str], folders: Collection[str]) -> None:
    """Make the directories that a job's containers write to, where they do not exist.

    Args:
        app_id: the job.
        sources: those of its own. Any user of a container may write to them, who cannot be reached by others.
        folders: those that the user named.

    Raises:
        StateStoreError: the state directory cannot be written.
        BackendError: a folder cannot be made.
    """
    for folder in folders:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:
            raise BackendError(
                f"cannot make the folder {folder} for the job's results: {error.strerror or error}"
            ) from error
    if not sources:
        return
    make_private_dir(directory_of(app_id))
    try:
        for source in sources:
            os.makedirs(source, exist_ok=True)
            os.chmod(source, 0o777)
    except OSError as error:
        raise state_error("make the directory of the job's results", directory_of(app_id), error) from error


def remove(app_id: str) -> None:
    """Remove a job's results from this machine.

    Raises:
        BackendError: they cannot be removed.
    """
    path = directory_of(app_id)
    if os.path.basename(path) != app_id or app_id in ("", ".", ".."):
        return
    try:
        directories.remove_tree(path)
    except OSError as error:
        raise BackendError(
            f"cannot remove {error.filename or path}: {error.strerror or error}",
            hint="A container's user wrote it. Remove it as root, and delete the job again.",
        ) from error


def without_job(known: Collection[str]) -> Iterator[tuple[str, float]]:
    """Yield ids of jobs of which only results are left, and when those were last changed."""
    try:
        entries = list(os.scandir(root()))
    except OSError:
        return
    for entry in entries:
        if entry.name not in known:
            yield entry.name, entry.stat(follow_symlinks=False).st_mtime
