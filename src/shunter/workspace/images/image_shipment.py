"""Code shipped as images, for schedulers whose jobs run in images: `DockerWorkspaceMixin`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shunter.docker.engine import Engine
from shunter.docker.image_reference import Reference, image_problem
from shunter.docker.image_store import inspect_image
from shunter.errors import ConfigError, InvalidRunConfigException, ShunterError, WorkspaceChangedError
from shunter.image_registry.client import RegistryClient
from shunter.parallel import for_all
from shunter.progress import Progress, Silent
from shunter.specs.app import NO_IMAGE, AppDef, Role
from shunter.specs.options import DESTINATION, option
from shunter.specs.workspace import Workspace
from shunter.workspace.code_store import Store
from shunter.workspace.images.dockerfile import IMAGE_ARG
from shunter.workspace.images.image_cache import ImageCache
from shunter.workspace.images.image_content import JobCode
from shunter.workspace.images.make_image import (
    LOCAL_REPOSITORY,
    CodeImage,
    ImageDestination,
    WantedImage,
)
from shunter.workspace.manifest import Manifest
from shunter.workspace.selection import Report
from shunter.workspace.shipment import ATTEMPTS
from shunter.workspace.snapshot import still_growing
from shunter.workspace.toolkit_files import ToolkitPlace, needs_toolkit

#: Images that are made at the same time.
AT_ONCE = 4


@dataclass(kw_only=True)
class DockerWorkspaceOpts:
    """Options of every scheduler that puts code into images. Options of schedulers inherit them."""

    image_repo: str | None = option(
        "repository that images with the job's code are pushed to, such as ghcr.io/me/jobs",
        default=None,
        needs_trust=DESTINATION,
    )
    quiet: bool = option("show the output of image builds only if they fail", default=False)


class ImageShipment:
    """The shipment of a job's code in the images that the job needs."""

    def __init__(self, code: JobCode, wanted: Sequence[WantedImage], destination: ImageDestination) -> None:
        self._code = code
        self._wanted = tuple(wanted)
        self._destination = destination

    @property
    def manifest(self) -> Manifest | None:
        """What is shipped; None if it is nothing but the toolkit."""
        return self._code.manifest

    @property
    def report(self) -> Report:
        """What the user should know of it."""
        return self._code.snapshot.report if self._code.snapshot else Report()

    def plan(self) -> dict[str, Any]:
        """Return what will be shipped, as JSON values."""
        manifest, report, context = self.manifest, self.report, self._code.context
        return {
            "kind": "image",
            "fingerprint": manifest.fingerprint if manifest else None,
            "files": manifest.files if manifest else 0,
            "size": manifest.size if manifest else 0,
            "dockerfile": context.dockerfile if context else None,
            "images": [
                {"base": wanted.image, "image": wanted.planned, "toolkit": wanted.toolkit}
                for wanted in self._wanted
            ],
            "secrets": report.secrets,
            "problems": [list(problem) for problem in report.problems],
        }

    def ship(self, progress: Progress) -> dict[str, str]:
        """Make the images; returns planned references and the exact ones that replace them."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                pinned = self._make_all(progress)
                break
            except WorkspaceChangedError as error:
                code = self._code
                if attempt == ATTEMPTS or code.workspace.frozen or code.snapshot is None:
                    raise
                progress.step("the workspace has changed; reading it again")
                self._code = JobCode(
                    code.workspace,
                    with_toolkit=code.toolkit is not None,
                    growing=still_growing(code.snapshot, error, progress),
                )
        if self._code.snapshot is not None:
            store = Store()
            store.put_manifest(self._code.snapshot.manifest)
            store.keep_sources(self._code.snapshot)
        return pinned

    def _make_all(self, progress: Progress) -> dict[str, str]:
        stoppable = _StoppableProgress(progress)

        def make(wanted: WantedImage) -> str:
            return CodeImage(wanted, self._code, self._destination, stoppable).make()

        made = for_all(make, self._wanted, workers=AT_ONCE, on_failure=stoppable.stop)
        return {wanted.planned: image for wanted, image in zip(self._wanted, made, strict=True)}


class _StoppedError(ShunterError):
    """Another image could not be made, so that this one is not needed."""


class _StoppableProgress:
    """Passes progress on until it is stopped; from then on, reporting progress raises an error."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._stopped = threading.Event()
        # a program's output is read to its end
        self.output = progress.output
        self.done = progress.done

    def stop(self) -> None:
        self._stopped.set()

    def step(self, text: str) -> None:
        self._check()
        self._progress.step(text)

    def advance(self, label: str, done: int, total: int) -> None:
        self._check()
        self._progress.advance(label, done, total)

    def _check(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError("it was stopped")


class DockerWorkspaceMixin:
    """Puts a job's code, and the toolkit where it is needed, as a layer over the images of its roles.

    A workspace's own ``Dockerfile.shunter`` or ``Dockerfile.torchx`` is built instead, with the arguments
    ``IMAGE`` and ``WORKSPACE``. To be named before `Scheduler` among a scheduler's bases; the scheduler's
    options inherit `DockerWorkspaceOpts`.
    """

    #: Whether jobs run on other machines, so that images have to be in a registry.
    requires_image_repo = True

    _own_engine: Engine | None = None

    def docker_engine(self) -> Engine:
        """Return the client of the Docker daemon that images are made in. Contacts nothing."""
        if self._own_engine is None:
            self._own_engine = Engine.from_env()
        return self._own_engine

    def plan_shipment(
        self, app: AppDef, workspace: Workspace, cfg: Mapping[str, Any]
    ) -> ImageShipment | None:
        """Plan the images of a job, and set its roles' images to the planned names; reads only.

        None if neither a workspace nor the toolkit has to go into any image.

        Raises:
            WorkspaceError: the workspace cannot be read.
            ConfigError: there is no image to put it into, or no repository to push to.
        """
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
            tag = code.key(role.image, with_toolkit=toolkit, platform=cfg.get("platform"))
            planned = f"{repository or LOCAL_REPOSITORY}:{tag}"
            wanted[planned] = WantedImage(role.image, toolkit, planned)
            role.image = planned
        destination = ImageDestination(
            self.docker_engine,
            repository,
            in_daemon=not self.requires_image_repo,
            quiet=bool(cfg.get("quiet")),
            cache=ImageCache(),
            platform=cfg.get("platform"),
        )
        return ImageShipment(code, list(wanted.values()), destination)

    def build_workspaces(
        self,
        roles: Sequence[Role],
        cfg: Mapping[str, Any],
        workspace: Workspace | str = ".",
        progress: Progress | None = None,
    ) -> None:
        """Make the images of roles now, and set their images to them.

        Raises:
            ShunterError: one could not be made.
        """
        given = workspace if isinstance(workspace, Workspace) else Workspace.from_str(workspace)
        shipment = self.plan_shipment(AppDef("images", list(roles)), given, cfg)
        if shipment is not None:
            pinned = shipment.ship(progress or Silent())
            for role in roles:
                role.image = pinned.get(role.image, role.image)

    def toolkit_place(self, role: Role) -> ToolkitPlace | None:
        """Return where the toolkit lies in images; code is in the working directory."""
        return ToolkitPlace()

    def has_images(self, images: Iterable[str]) -> bool:
        """Tell whether all of these exact images are still there."""
        with contextlib.suppress(ShunterError):
            return all(self._has_image(image) for image in images)
        return False

    def _has_image(self, image: str) -> bool:
        if "@" not in image or not self.requires_image_repo:
            return inspect_image(self.docker_engine(), image) is not None
        reference = Reference.parse(image)
        with RegistryClient(reference.registry) as client:
            return client.manifest_digest(reference.repository, reference.selector) is not None

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


class ImageMaker(DockerWorkspaceMixin):
    """Makes images for a scheduler.

    Args:
        backend: name of the scheduler.
        docker_client: a client of docker-py to reach the daemon through; by default that of the environment.
    """

    def __init__(self, backend: str, docker_client: Any | None = None) -> None:
        self.backend = backend
        self._is_given = docker_client is not None
        if self._is_given:
            self._own_engine = Engine.adopt(docker_client)

    def close(self) -> None:
        """Close the connections to the daemon; a client that was passed in stays open."""
        if self._own_engine is not None and not self._is_given:
            self._own_engine.close()
            self._own_engine = None


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
