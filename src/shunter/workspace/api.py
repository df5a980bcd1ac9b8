"""The base of schedulers that put the user's code into the image of a role: `WorkspaceMixin`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from shunter.errors import ConfigError
from shunter.specs.app import AppDef, Role
from shunter.specs.options import runopts
from shunter.specs.workspace import Workspace
from shunter.workspace.ignore import TorchxRules

T = TypeVar("T")
TORCHX_IGNORE = ".torchxignore"

__all__ = ["TORCHX_IGNORE", "Workspace", "WorkspaceMixin", "walk_workspace"]


class WorkspaceMixin(Generic[T]):
    """A scheduler that turns a workspace into the image of a role. A base besides `Scheduler`.

    ``T`` is what `dryrun_push_images` returns.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)

    def workspace_opts(self) -> runopts:
        """Return the build options. Overridden by subclasses that have any."""
        return runopts()

    def build_workspaces(self, roles: Sequence[Role], cfg: Mapping[str, Any]) -> None:
        """Build the workspaces of roles that name one, and set their images."""
        cache: dict[object, object] = {}
        for role in roles:
            if role.workspace:
                self.caching_build_workspace_and_update_role(role, cfg, cache)

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, Any], build_cache: dict[object, object]
    ) -> None:
        """Build the workspace of a role. ``build_cache`` lives as long as one call of `build_workspaces`."""
        if role.workspace:
            self.build_workspace_and_update_role2(role, role.workspace, cfg)

    def build_workspace_and_update_role2(
        self, role: Role, workspace: Workspace | str, cfg: Mapping[str, Any]
    ) -> None:
        """Build a workspace of one or several directories; several are copied into one first."""
        if not isinstance(workspace, Workspace):
            workspace = Workspace.from_str(workspace)
        if workspace.is_unmapped_single_project():
            self.build_workspace_and_update_role(role, str(workspace), cfg)
            return
        with tempfile.TemporaryDirectory(prefix="shunter-workspace-") as merged:
            workspace.merge_into(merged)
            self.build_workspace_and_update_role(role, merged, cfg)

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        """Build the workspace of one directory, and set the role's image to the result."""
        raise NotImplementedError(f"{type(self).__name__} cannot build workspaces")

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, Any]) -> T:
        """Set the images of a job to the names that they will have in a registry; returns what to push."""
        raise NotImplementedError(f"{type(self).__name__} cannot push images")

    def push_images(self, images_to_push: T) -> None:
        """Push what `dryrun_push_images` returned."""
        raise NotImplementedError(f"{type(self).__name__} cannot push images")


def walk_workspace(
    fs: Any, path: str, ignore_name: str = TORCHX_IGNORE
) -> Iterable[tuple[str, Iterable[str], Mapping[str, Mapping[str, object]]]]:
    """Walk a directory of an fsspec file system, skipping what its ignore file names.

    The last matching pattern decides, and ``!`` includes again; see `shunter.workspace.ignore.TorchxRules`.

    Raises:
        ConfigError: the file system lists a directory that is not inside of ``path``.
    """
    rules = TorchxRules([], ignore_name)
    ignore_path = f"{path.rstrip('/')}/{ignore_name}"
    if fs.exists(ignore_path):
        with fs.open(ignore_path, "rt") as file:
            rules = TorchxRules(list(file), ignore_path)
    for directory, directories, files in fs.walk(path, detail=True):
        if not directory.startswith(path):
            raise ConfigError(f"{directory} is not inside of the workspace {path}")
        below = os.path.relpath(directory, path)

        def is_kept(name: str, below: str = below) -> bool:
            return not rules.excludes(name if below == "." else f"{below}/{name}")

        kept = {name: info for name, info in files.items() if is_kept(name)}
        for name in [name for name in directories if not is_kept(name)]:
            if not rules.has_exceptions:
                del directories[name]
        yield directory, list(directories), kept
