"""Workspaces that are copied into a directory, which becomes the image of the role."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

from shunter.specs.app import AppDef, Role
from shunter.specs.options import runopts
from shunter.workspace.api import WorkspaceMixin
from shunter.workspace.selection import select


class DirWorkspaceMixin(WorkspaceMixin[None]):
    """Copies the workspace into the folder that the option ``job_dir`` names."""

    def workspace_opts(self) -> runopts:
        """Return ``job_dir``."""
        options = runopts()
        options.add("job_dir", str, "folder that the workspace is copied to; must not exist")
        return options

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        """Copy the workspace, if there is a ``job_dir``.

        Raises:
            FileExistsError: the directory exists.
        """
        job_dir = cfg.get("job_dir")
        if job_dir:
            role.image = _copy(workspace, str(job_dir))

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, Any]) -> None:
        """Do nothing: there are no images."""

    def push_images(self, images_to_push: None) -> None:
        """Do nothing: there are no images."""


class TmpDirWorkspaceMixin(DirWorkspaceMixin):
    """Copies the workspace into a temporary folder."""

    def workspace_opts(self) -> runopts:
        """Return no options."""
        return runopts()

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        """Copy the workspace."""
        role.image = _copy(workspace, os.path.join(tempfile.mkdtemp(prefix="shunter-workspace-"), "code"))


def _copy(workspace: str, target: str) -> str:
    os.mkdir(target)
    source = workspace.removeprefix("file://")
    selection = select(source)
    for path in selection.directories:
        os.makedirs(os.path.join(target, path), exist_ok=True)
    for path, _ in [*selection.files, *selection.links]:
        copy = os.path.join(target, path)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        shutil.copy2(os.path.join(source, path), copy, follow_symlinks=False)
    return target
