"""Schedulers whose jobs run in images: the user's code becomes a layer over the images of the roles.

What a layer holds, and how a daemon or a registry takes it, is in `shunter.workspace.images`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shunter._toolkit.environment_description import Description
from shunter.docker.command import DockerCommand
from shunter.docker.image_reference import Reference, image_problem
from shunter.docker.images import inspect_image, push_image, tag
from shunter.errors import ConfigError, InvalidRunConfigException, ShunterError
from shunter.image_registry.client import RegistryClient
from shunter.progress import Silent
from shunter.specs.app import NO_IMAGE, AppDef, Role
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.options import DESTINATION, option, runopts
from shunter.specs.workspace import Workspace
from shunter.workspace.api import WorkspaceMixin
from shunter.workspace.environment import of_role, summary
from shunter.workspace.images import environment_layer
from shunter.workspace.images.dockerfile import IMAGE_ARG
from shunter.workspace.images.image_cache import ImageCache
from shunter.workspace.images.image_content import JobCode
from shunter.workspace.images.image_shipment import (
    LOCAL_REPOSITORY,
    ImageDestination,
    ImageShipment,
    WantedImage,
)
from shunter.workspace.shipment import Shipment
from shunter.workspace.toolkit_files import ToolkitPlace, needs_toolkit

#: What the name of an image that is only in a daemon begins with.
LOCAL_IMAGE = "sha256:"


@dataclass(kw_only=True)
class DockerWorkspaceOpts:
    """Options of every scheduler that puts code into images. Options of schedulers inherit them."""

    image_repo: str | None = option(
        "repository that images with the job's code are pushed to, such as ghcr.io/me/jobs",
        default=None,
        needs_trust=DESTINATION,
    )
    quiet: bool = option("show the output of image builds only if they fail", default=False)


class DockerWorkspaceMixin(WorkspaceMixin[dict[str, tuple[str, str]]]):
    """Puts a job's code, and the toolkit where it is needed, as a layer over the images of its roles.

    A workspace's own ``Dockerfile.shunter`` or ``Dockerfile.torchx`` is built instead, with the arguments
    ``IMAGE`` and ``WORKSPACE``. To be named before `Scheduler` among a scheduler's bases. shunter's own
    schedulers plan the images with `_plan_shipment` and make them when the job is submitted; those of plugins
    make them with `build_workspace_and_update_role` and push them with `push_images`.

    Args:
        docker_client: a client of docker-py, whose daemon is used; by default that of the environment.
    """

    #: Label of images; it has the name that TorchX gave it.
    LABEL_VERSION = "torchx.pytorch.org/version"
    #: Whether jobs run on other machines, so that images have to be in a registry.
    requires_image_repo = True

    _given_docker_client: Any = None
    _docker_command: DockerCommand | None = None

    def __init__(self, *args: object, docker_client: Any | None = None, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._given_docker_client = docker_client

    @property
    def _docker_client(self) -> Any:
        """The client of docker-py, for plugins; that of the environment if none was given.

        Raises:
            ConfigError: the package docker is not installed.
        """
        if self._given_docker_client is None:
            try:
                import docker
            except ModuleNotFoundError:
                raise ConfigError(
                    "a client of the Python package docker is needed, which is not installed",
                    hint="Install it: pip install docker",
                ) from None
            self._given_docker_client = docker.from_env()
        return self._given_docker_client

    @property
    def docker(self) -> DockerCommand:
        """The command for the Docker daemon that images are made in. Contacts nothing."""
        if self._docker_command is None:
            given = self._given_docker_client
            self._docker_command = DockerCommand() if given is None else DockerCommand.of_client(given)
        return self._docker_command

    # ---- the calls of shunter

    def _image_options(self, cfg: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options that images are made with: ``image_repo``, ``quiet``, ``platform``."""
        return cfg

    def _plan_shipment(self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]) -> Shipment | None:
        """Plan the images of a job, and set its roles' images to the planned names; reads only.

        None if neither a workspace nor the toolkit has to go into any image. A workspace that is a mere
        default does not travel to other machines unless ``image_repo`` is given.

        Raises:
            WorkspaceError: the workspace cannot be read.
            ConfigError: there is no image to put it into, or no repository to push to.
        """
        cfg = self._image_options(cfg)
        if workspace.implicit and self.requires_image_repo and not cfg.get("image_repo"):
            workspace = Workspace()
        with_toolkit = any(needs_toolkit(role) for role in app.roles)
        if not workspace and not with_toolkit:
            return None
        repository = self._repository(workspace, cfg)
        code = JobCode(workspace, with_toolkit=with_toolkit)
        wanted: dict[str, WantedImage] = {}
        for role in app.roles:
            toolkit = needs_toolkit(role)
            if not workspace and not toolkit:
                continue
            _check_image(role, code)
            environment = None if code.context else of_role(role)
            of_environment = environment_layer.key(environment) if environment else ""
            platform = cfg.get("platform")
            key = code.key(role.image, with_toolkit=toolkit, platform=platform, environment=of_environment)
            planned = f"{repository or LOCAL_REPOSITORY}:{key}"
            wanted[planned] = WantedImage(role.image, toolkit, planned, environment)
            role.image = planned
        return ImageShipment(code, list(wanted.values()), self._image_destination(repository, cfg))

    def _image_destination(self, repository: str, cfg: Mapping[str, Any]) -> ImageDestination:
        return ImageDestination(
            self.docker,
            repository,
            in_daemon=not self.requires_image_repo,
            quiet=bool(cfg.get("quiet")),
            cache=ImageCache(),
            platform=cfg.get("platform"),
        )

    def _plan_environment_image(self, role: Role, cfg: Mapping[str, Any]) -> ImageShipment | None:
        """Plan the image with a role's environment alone, whose code travels in another way.

        Sets the role's image to the planned name. None if the role has no environment, or none can go into
        an image, for lack of ``image_repo`` or of uv.

        Raises:
            ConfigError: there is no image to put it into.
        """
        description = of_role(role)
        if description is None or not cfg.get("image_repo") or not environment_layer.can_make():
            return None
        code = JobCode(Workspace(), with_toolkit=False)
        _check_image(role, code)
        repository = self._repository(Workspace(), cfg)
        of_environment = environment_layer.key(description)
        key = code.key(
            role.image, with_toolkit=False, platform=cfg.get("platform"), environment=of_environment
        )
        wanted = WantedImage(role.image, False, f"{repository}:{key}", description)
        role.image = wanted.planned
        return ImageShipment(code, [wanted], self._image_destination(repository, cfg))

    def _toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where the toolkit lies in images; code is in the working directory."""
        return ToolkitPlace()

    def _plan_environment(self, info: AppDryRunInfo[Any], description: Description) -> dict[str, Any]:
        """Say whether the environment becomes a layer of the image, or is installed in the container."""
        facts: dict[str, Any] = {**summary(description), "built": None}
        images = self._images_in(info.shipment)
        bases = [wanted.image for wanted in images if wanted.environment == description]
        start = "is installed at the start of the container"
        if not bases or not environment_layer.can_make():
            return {**facts, "place": f"{start}, unless it is there"}
        place = f"becomes a layer over {bases[0]}; if it cannot be one, it {start}"
        return {**facts, "place": place}

    def _images_in(self, shipment: Shipment | None) -> Sequence[WantedImage]:
        """Return the images that a shipment makes."""
        return shipment.wanted if isinstance(shipment, ImageShipment) else ()

    def has_images(self, images: Iterable[str]) -> bool:
        """Tell whether all of these exact images are still there."""
        with contextlib.suppress(ShunterError):
            return all(self._has_image(image) for image in images)
        return False

    def _has_image(self, image: str) -> bool:
        if "@" not in image or not self.requires_image_repo:
            return inspect_image(self.docker, image) is not None
        reference = Reference.parse(image)
        with RegistryClient(reference.registry) as client:
            return client.manifest(reference.repository, reference.selector) is not None

    def _repository(self, workspace: Workspace, cfg: Mapping[str, Any]) -> str:
        given = cfg.get("image_repo") or ""
        if not given:
            if not self.requires_image_repo:
                return ""
            name = getattr(self, "backend", "this scheduler")
            what = f"the workspace {workspace}" if workspace else "the toolkit"
            raise InvalidRunConfigException(
                f"{name} runs jobs on other machines, so an image with {what} has to be pushed to a registry,"
                " and no repository is given",
                "image_repo",
                hint="Name one that you may push to: -cfg image_repo=ghcr.io/me/jobs"
                + (". Or ship no code: --workspace ''" if workspace else ""),
            )
        reference = Reference.parse(given)
        if reference.tag or reference.digest:
            part = f"the digest {reference.digest}" if reference.digest else f"the tag {reference.tag!r}"
            name = given.partition("@")[0]
            bare = name.removesuffix(f":{reference.tag}") if reference.tag else name
            raise InvalidRunConfigException(
                f"image_repo={given} has {part}, but every image gets its own tag, made from its content",
                "image_repo",
                cfg,
                hint=f"Name only the repository: image_repo={bare}",
            )
        return str(given)

    # ---- the calls of plugins that were written for TorchX

    def workspace_opts(self) -> runopts:
        """Return ``image_repo`` and ``quiet``."""
        return runopts.from_dataclass(DockerWorkspaceOpts)

    def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        """Make the image with a workspace now, and set the role's image to it.

        It is pushed where ``image_repo`` says, or is in the daemon of this machine.

        Raises:
            ShunterError: it could not be made.
        """
        maker = DockerWorkspaceMixin(docker_client=self._given_docker_client)
        maker.requires_image_repo = bool(cfg.get("image_repo"))
        shipment = maker._plan_shipment(AppDef("image", [role]), Workspace.from_str(workspace), cfg)
        references = {} if shipment is None else shipment.ship(Silent())
        role.image = references.get(role.image, role.image)

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
        """Name the job's images that are only in the daemon after ``image_repo``; return what to push.

        Those that were made with ``image_repo`` set have been pushed.

        Returns:
            Repository and tag, by the name of the image.

        Raises:
            NoRepositoryError: there is such an image, and no ``image_repo``.
        """
        images: dict[str, tuple[str, str]] = {}
        for role in app.roles:
            local = role.image
            if not local.startswith(LOCAL_IMAGE):
                continue
            repository = cfg.get("image_repo")
            if not repository:
                raise NoRepositoryError(
                    f"the image {local} of the role {role.name!r} is only on this machine",
                    hint="Set the scheduler option image_repo, to which it is pushed.",
                )
            images[local] = (str(repository), local.removeprefix(LOCAL_IMAGE))
            role.image = ":".join(images[local])
        return images

    def push_images(self, images_to_push: Mapping[str, tuple[str, str]]) -> None:
        """Push what `dryrun_push_images` returned.

        Raises:
            BackendError: the registry did not take an image.
        """
        for image, (repository, name) in images_to_push.items():
            tag(self.docker, image, f"{repository}:{name}")
            push_image(self.docker, f"{repository}:{name}", Silent())


class NoRepositoryError(ConfigError, KeyError):
    """An image would have to be pushed, and ``image_repo`` is not set. A `KeyError`, as TorchX raises."""


def _check_image(role: Role, code: JobCode) -> None:
    if role.image and role.image != NO_IMAGE:
        problem = image_problem(role.image)
        if problem:
            raise ConfigError(
                f"role {role.name!r}: {problem}", hint="Examples: python:3.12, ghcr.io/me/train:v1"
            )
        return
    if code.context is not None and IMAGE_ARG not in code.context.text:
        return
    raise ConfigError(
        f"role {role.name!r} has no image that its code could be put into",
        hint="Name one that contains Python: --image python:3.12 (or your project's image).",
    )
