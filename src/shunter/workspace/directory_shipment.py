"""Code shipped as directories, for schedulers whose jobs run in a directory that both sides can reach.

A local job gets a *view*: its own directory, so that what it writes reaches neither the store nor another
job. On a cluster's shared disk, all jobs with the same code share one *copy*, named by its fingerprint.
"""

from __future__ import annotations

import os
import posixpath
from typing import Any

from shunter.errors import StateStoreError, WorkspaceChangedError
from shunter.paths import remove_tree, view_dir
from shunter.progress import Progress
from shunter.specs.workspace import Workspace
from shunter.workspace.code_store import BLOB_TIME_NS, Store
from shunter.workspace.manifest import Manifest
from shunter.workspace.shipment import ATTEMPTS, Report
from shunter.workspace.snapshot import snapshot


class DirectoryShipment:
    """The shipment of a workspace into a store of this machine, by default this user's.

    Raises:
        WorkspaceError: it cannot be read, or has no files.
    """

    def __init__(self, workspace: Workspace, store: Store | None = None) -> None:
        self._workspace = workspace
        #: Where it goes.
        self.store = store or Store()
        self._snapshot = snapshot(workspace)

    @property
    def sources(self) -> list[str]:
        """The directories that it comes from."""
        return list(self._workspace.projects)

    @property
    def manifest(self) -> Manifest:
        """What is shipped."""
        return self._snapshot.manifest

    @property
    def report(self) -> Report:
        """What the user should know of it."""
        return self._snapshot.report

    def plan(self) -> dict[str, Any]:
        """Return what will be shipped, as JSON values."""
        manifest, report = self.manifest, self.report
        return {
            "kind": "directory",
            "fingerprint": manifest.fingerprint,
            "files": manifest.files,
            "size": manifest.size,
            "secrets": report.secrets,
            "problems": [list(problem) for problem in report.problems],
        }

    def ship(self, progress: Progress) -> dict[str, str]:
        """Put the content into the store. There are no references to replace."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self.store.add(self._snapshot, progress=progress)
            except WorkspaceChangedError:
                if attempt == ATTEMPTS or self._workspace.frozen:
                    raise
                self._snapshot = snapshot(self._workspace)
            else:
                break
        return {}


def make_view(shipment: DirectoryShipment, name: str) -> str:
    """Make the working directory of one job; returns its path, which is `view_dir` of the name.

    Raises:
        StateStoreError: it cannot be made; nothing of it is left.
    """
    directory = view_dir(name)
    shipment.store.materialize(shipment.manifest, directory)
    return directory


def remove_view(name: str) -> None:
    """Remove the working directory of a job, if it has one.

    Raises:
        StateStoreError: it cannot be removed.
    """
    directory = view_dir(name)
    try:
        remove_tree(directory)
    except OSError as error:
        raise StateStoreError(f"cannot remove {error.filename or directory}: {error.strerror}") from error


def shared_copy(store: Store, manifest: Manifest, parent: str) -> str:
    """Return a directory with this content that all jobs with the same code share; makes it if necessary.

    A copy that a job has written into is left to the jobs that run in it, and another one is made. The store
    has the content. ``parent`` is where copies are kept, reachable for the jobs.

    Raises:
        StateStoreError: it cannot be made; nothing of it is left.
    """
    for number in range(1000):
        name = manifest.fingerprint[:32] + (f".{number}" if number else "")
        directory = os.path.join(parent, name)
        if not os.path.lexists(directory):
            try:
                store.materialize(manifest, directory)
            except StateStoreError:
                if not os.path.isdir(directory):  # or else another process was faster
                    raise
            else:
                return directory
        if is_intact(manifest, directory):
            return directory
    raise StateStoreError(
        f"{parent} is full of copies that jobs have written into", hint="Remove those that no job runs in."
    )


def is_intact(manifest: Manifest, directory: str) -> bool:
    """Tell whether the files of a shared copy are as they were put there. New files do not matter."""
    for entry in manifest.entries:
        path = os.path.join(directory, entry.path)
        try:
            if entry.kind == "link":
                sound = os.readlink(path) == entry.target
            elif entry.kind == "dir":
                sound = os.path.isdir(path)
            else:
                info = os.lstat(path)
                sound = (info.st_size, info.st_mtime_ns) == (entry.size, BLOB_TIME_NS)
        except OSError:
            return False
        if not sound:
            return False
    return True


def program_problem(manifest: Manifest, program: str, *, is_executed: bool = True) -> str:
    """Return what is wrong with a program that a workspace must have, "" if nothing is.

    Its path is relative to the working directory. ``is_executed``: it is started itself, rather than given to
    another program.
    """
    path = posixpath.normpath(program)
    parts = path.split("/")
    places = [manifest.by_path.get("/".join(parts[: depth + 1])) for depth in range(len(parts))]
    if any(place is not None and place.kind == "link" for place in places):
        return ""  # only the job's machine knows where it leads
    entry = places[-1]
    if entry is None:
        return f"the workspace has no {program}"
    if entry.kind == "dir":
        return f"{program} is a directory"
    if is_executed and not entry.mode & 0o111:
        return f"{program} is not executable (chmod +x?)"
    return ""
