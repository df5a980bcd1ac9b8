"""Workspaces at URLs: their files are fetched by fsspec, into a directory of this process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from shunter.errors import ConfigError, WorkspaceError
from shunter.specs.workspace import Workspace, is_url


def fetched(workspace: Workspace) -> Workspace:
    """Return a workspace whose sources are directories of this machine; those that are URLs are fetched.

    The copies are removed when this process ends.

    Raises:
        ConfigError: fsspec, or its package for such URLs, is not installed.
        WorkspaceError: the files cannot be read.
    """
    if not any(is_url(source) for source in workspace.projects):
        return workspace
    copies = tempfile.mkdtemp(prefix="shunter-workspace-")
    atexit.register(shutil.rmtree, copies, ignore_errors=True)
    projects = {}
    for number, (source, to) in enumerate(workspace.projects.items()):
        path = source
        if is_url(source):
            path = os.path.join(copies, str(number))
            _fetch(source, path)
        projects[path] = to
    return Workspace(projects, implicit=workspace.implicit)


def _fetch(url: str, directory: str) -> None:
    """Copy the files below a URL into a directory, which is made."""
    try:
        import fsspec

        files, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"the workspace {url} cannot be read: {error}",
            hint="pip install fsspec, and its package for such URLs, such as s3fs",
        ) from None
    os.makedirs(directory)
    try:
        found = files.find(root)
        for name in found:
            relative = os.path.relpath(name, root)
            if relative.startswith(".."):
                raise WorkspaceError(f"the workspace {url} has a file outside of it: {name}")
            path = os.path.join(directory, relative)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            files.get_file(name, path)
    except OSError as error:
        raise WorkspaceError(f"the workspace {url} cannot be read: {error}") from None
    if not found:
        raise WorkspaceError(f"there are no files at the workspace {url}")
