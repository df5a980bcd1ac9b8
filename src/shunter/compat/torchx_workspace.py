"""TorchX's classes of schedulers that build an image from a workspace (``torchx.workspace``)."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TextIO, TypeVar

from shunter.compat.torchx_specs import as_torchx_workspace
from shunter.errors import ConfigError
from shunter.specs.app import AppDef, Role
from shunter.specs.options import runopts
from shunter.specs.workspace import Workspace
from shunter.workspace.ignore import TorchxRules
from shunter.workspace.images.image_shipment import ImageMaker
from shunter.workspace.selection import select

log = logging.getLogger(__name__)
logger = log
T = TypeVar("T")
PackageType = TypeVar("PackageType")
WorkspaceConfigType = TypeVar("WorkspaceConfigType")
TORCHX_IGNORE = ".torchxignore"
TORCHX_DOCKERFILE = "Dockerfile.torchx"
#: What is built where a workspace has no Dockerfile.
DEFAULT_DOCKERFILE = b"\nARG IMAGE\nFROM $IMAGE\n\nCOPY . .\n"


class WorkspaceMixin(Generic[T]):
    """A scheduler that turns a workspace into the image of a role. A base besides `Scheduler`."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)

    def workspace_opts(self) -> runopts:
        """Return the build options. Overridden by subclasses that have any."""
        return runopts()

    def build_workspaces(self, roles: list[Role], cfg: Mapping[str, Any]) -> None:
        """Build the workspaces of roles that have one, equal ones once, and set their images."""
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
        given = workspace if isinstance(workspace, Workspace) else Workspace.from_str(workspace)
        if given.is_unmapped_single_project():
            self.build_workspace_and_update_role(role, str(given), cfg)
            return
        with tempfile.TemporaryDirectory(prefix="torchx-workspace-") as merged:
            as_torchx_workspace(given).merge_into(merged)
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


class NoRepositoryError(ConfigError, KeyError):
    """An image would have to be pushed, and ``image_repo`` is not set. A `KeyError`, as TorchX raises."""


class TorchxDockerWorkspaceMixin(WorkspaceMixin[dict[str, tuple[str, str]]]):
    """Makes a layer with the workspace over a role's image, or builds its ``Dockerfile.torchx``.

    Args:
        docker_client: a client of docker-py to reach the daemon through; by default that of the environment.
    """

    LABEL_VERSION = "torchx.pytorch.org/version"

    def __init__(self, *args: object, docker_client: Any | None = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._given_docker_client = docker_client

    def workspace_opts(self) -> runopts:
        """Return ``image_repo`` and ``quiet``."""
        options = runopts()
        options.add("image_repo", str, "repository that images with the job's code are pushed to")
        options.add("quiet", bool, "show the output of image builds only if they fail", default=False)
        return options

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        """Build the image in the daemon of this machine, or push it where ``image_repo`` says."""
        maker = ImageMaker(getattr(self, "backend", "docker"), self._given_docker_client)
        maker.requires_image_repo = bool(cfg.get("image_repo"))
        try:
            maker.build_workspaces([role], cfg, workspace)
        finally:
            maker.close()

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
        """Name the job's images that are only in the daemon after ``image_repo``; return what to push.

        Those that were built with ``image_repo`` set are there already.

        Raises:
            NoRepositoryError: there is such an image, and no ``image_repo``.
        """
        pushed: dict[str, tuple[str, str]] = {}
        for role in app.roles:
            local, prefix = role.image, "sha256:"
            if not local.startswith(prefix):
                continue
            repository = cfg.get("image_repo")
            if not repository:
                raise NoRepositoryError(
                    f"the image {local} of the role {role.name!r} is only on this machine",
                    hint="Set the scheduler option image_repo, to which it is pushed.",
                )
            pushed[local] = (str(repository), local.removeprefix(prefix))
            role.image = ":".join(pushed[local])
        return pushed

    def push_images(self, images_to_push: Mapping[str, tuple[str, str]]) -> None:
        """Push images: local name -> (repository, tag)."""
        if not images_to_push:
            return
        client = self._docker_client
        for image, (repository, tag) in images_to_push.items():
            client.images.get(image).tag(repository, tag=tag)
            print_push_events(client.images.push(repository, tag=tag, stream=True, decode=True))

    @property
    def _docker_client(self) -> Any:
        """The client of docker-py, which schedulers derived from this one use."""
        if self._given_docker_client is None:
            import docker

            self._given_docker_client = docker.from_env()
        return self._given_docker_client


def print_push_events(events: Iterable[Mapping[str, Any]], stream: TextIO = sys.stderr) -> None:
    """Print what the Docker daemon reports while it pushes, each status once.

    Raises:
        RuntimeError: it reports an error.
    """
    last = None
    for event in events:
        if "error" in event:
            raise RuntimeError(f"the image could not be pushed: {event['error']}")
        status = event.get("status")
        if status and status != last:
            stream.write(f"{status}\n")
            last = status


class DirWorkspaceMixin(WorkspaceMixin[None]):
    """Copies the workspace into the folder that the option ``job_dir`` names; the image is that folder."""

    def workspace_opts(self) -> runopts:
        """Return ``job_dir``."""
        options = runopts()
        options.add("job_dir", str, "folder that the workspace is copied to; must not exist")
        return options

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        """Copy the workspace, if there is a ``job_dir``."""
        job_dir = cfg.get("job_dir")
        if job_dir:
            role.image = _copied(workspace, str(job_dir))

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, Any]) -> None:
        """Do nothing: there are no images."""

    def push_images(self, images_to_push: None) -> None:
        """Do nothing: there are no images."""


class TmpDirWorkspaceMixin(DirWorkspaceMixin):
    """Copies the workspace into a temporary folder; the image is that folder."""

    def workspace_opts(self) -> runopts:
        """Return no options."""
        return runopts()

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        """Copy the workspace."""
        role.image = _copied(
            workspace, os.path.join(tempfile.mkdtemp(prefix="torchx_workspace"), "workspace")
        )


def _copied(workspace: str, target: str) -> str:
    os.mkdir(target)
    source = workspace.removeprefix("file://")
    selection = select(source)
    for path in selection.directories:
        os.makedirs(os.path.join(target, path), exist_ok=True)
    for path, _ in [*selection.files, *selection.links]:
        place = os.path.join(target, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        shutil.copy2(os.path.join(source, path), place, follow_symlinks=False)
    return target


@dataclass
class PkgInfo(Generic[PackageType]):
    """An image, and what is known of it."""

    img: str
    lazy_overrides: dict[str, Any] = field(default_factory=dict)
    metadata: PackageType | None = None


@dataclass
class WorkspaceBuilder(Generic[PackageType, WorkspaceConfigType]):
    """Base of classes that build an image from their configuration."""

    cfg: WorkspaceConfigType

    def build_workspace(self, sync: bool = True) -> PkgInfo[PackageType]:
        """Build it. Overridden."""
        raise NotImplementedError(f"{type(self).__name__} cannot build workspaces")
