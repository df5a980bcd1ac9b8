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
from trainyard.specs.training import local_path, output_of, specification

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from typing import Any

    from trainyard.specs.app import AppDef, Role

_BASE = "/opt/ml"
#: What is said where results are not kept on this machine.
IN_CONTAINERS = f"{_BASE} of its containers, until it is deleted (docker cp)"
_PARTS = ("model", "output", "checkpoints", "input/config")
_DATA = "input/data"  # only with channels: images may bring data of their own


def root() -> str:
    """Return the directory that holds a directory for each job."""
    return os.path.join(state_dir(), "docker")


def directory_of(app_id: str) -> str:
    """Return the directory of a job's results."""
    return os.path.join(root(), app_id)


def place_of(app: AppDef, app_id: str, *, kept_here: bool) -> str:
    """Return where the results of a job will be, in words for people; "" if it has none.

    Args:
        app: the job.
        app_id: its id.
        kept_here: whether they are kept on this machine.
    """
    trained = [role for role in app.roles if specification(role.metadata)]
    if not trained:
        return ""
    sent = output_of(specification(trained[0].metadata), app_id)
    if sent:
        return sent
    if not kept_here:
        return IN_CONTAINERS
    if len(trained) == trained[0].num_replicas == 1:
        return os.path.join(directory_of(app_id), f"{trained[0].name}-0")
    return directory_of(app_id)


def mounts_of(role: Role, replica: int, app_id: str) -> list[dict[str, Any]]:
    """Return the mounts by which a replica's results reach this machine; those of the user come first."""
    spec = specification(role.metadata)
    if not spec:
        return []
    base = role.env.get("SAGEMAKER_BASE_DIR", _BASE)
    own = os.path.join(directory_of(app_id), f"{role.name}-{replica}")
    parts = [*_PARTS, *([_DATA] if spec.get("channels") else [])]
    wanted = {os.path.join(base, part): os.path.join(own, part) for part in parts}
    taken = [mount.dst_path.rstrip("/") + "/" for mount in role.mounts]
    return [
        {"Type": "bind", "Source": source, "Target": target, "ReadOnly": False}
        for target, source in wanted.items()
        if not any(f"{target}/".startswith(path) for path in taken)
    ]


def folders_of(app: AppDef) -> list[str]:
    """Return the directories of this machine that results and checkpoints are to be sent to."""
    found = []
    for role in app.roles:
        spec = specification(role.metadata)
        sources = {getattr(mount, "src_path", None) for mount in role.mounts}
        for section in ("output", "checkpoints"):
            path = local_path((spec.get(section) or {}).get("uri") or "")
            if path in sources:
                found.append(path)
    return found


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
