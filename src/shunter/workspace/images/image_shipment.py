"""The shipment of a job's code in images: each is patched in a daemon or in a registry, or built."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shunter._toolkit.environment_description import Description
from shunter._toolkit.errors import InstallError
from shunter.docker.command import DockerCommand, DockerRefused
from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.docker.image_reference import Reference
from shunter.docker.images import inspect_image, is_out_of_space, pull_image, push_image, tag
from shunter.errors import ConfigError, WorkspaceChangedError
from shunter.image_registry.client import RegistryClient
from shunter.image_registry.image_manifest import parse_object
from shunter.image_registry.registry_errors import RegistryError
from shunter.progress import Progress
from shunter.workspace.code_store import Store
from shunter.workspace.images.docker_build import nameable, run_build
from shunter.workspace.images.dockerfile import IMAGE_ARG, WORKSPACE_ARG, BuildContext
from shunter.workspace.images.environment_layer import CannotMakeError, image_key, patch_for
from shunter.workspace.images.image_cache import ImageCache
from shunter.workspace.images.image_content import JobCode
from shunter.workspace.images.layer import work_folder
from shunter.workspace.images.patch_in_daemon import patch_in_daemon
from shunter.workspace.images.patch_in_registry import patch_in_registry
from shunter.workspace.manifest import Manifest
from shunter.workspace.shipment import ATTEMPTS, Report

#: Repository of patched images in a daemon.
LOCAL_REPOSITORY = "shunter/workspace"


@dataclass(frozen=True)
class WantedImage:
    """An image that a role needs.

    Attributes:
        image: the image below.
        toolkit: whether the toolkit goes into it.
        environment: the Python environment that goes into it, if it can be made for it; None for none.
        planned: what the request calls it until it is made.
    """

    image: str
    toolkit: bool
    planned: str
    environment: Description | None = None


@dataclass(frozen=True)
class ImageDestination:
    """Where images are made and go.

    Attributes:
        docker: the command for the daemon.
        repository: repository in a registry that they are pushed to; "" for none.
        in_daemon: whether jobs run in the daemon, so that it must have them.
        quiet: whether the output of builds is shown only if they fail.
        cache: what is remembered from the last time.
        platform: ``linux/arm64`` and the like; by default the daemon's own, or this machine's.
    """

    docker: DockerCommand
    repository: str
    in_daemon: bool
    quiet: bool
    cache: ImageCache
    platform: str | None = None


class ImageShipment:
    """The shipment of a job's code in the images that the job needs."""

    def __init__(self, code: JobCode, wanted: Sequence[WantedImage], destination: ImageDestination) -> None:
        self._code = code
        self.wanted = tuple(wanted)
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
                for wanted in self.wanted
            ],
            "secrets": report.secrets,
            "problems": [list(problem) for problem in report.problems],
        }

    def ship(self, progress: Progress) -> dict[str, str]:
        """Make the images; returns planned references and the exact ones that replace them."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                # one after the other: they share most of the work, and few jobs have several
                pinned = {wanted.planned: self._make(wanted, progress) for wanted in self.wanted}
                break
            except WorkspaceChangedError:
                code = self._code
                if attempt == ATTEMPTS or code.workspace.frozen or code.snapshot is None:
                    raise
                progress.step("the workspace has changed; reading it again")
                self._code = JobCode(code.workspace, with_toolkit=code.toolkit is not None)
        if self._code.snapshot is not None:
            Store().keep_sources(self._code.snapshot)
        return pinned

    def _make(self, wanted: WantedImage, progress: Progress) -> str:
        """Return an image, exactly: ``sha256:...``, or ``repository@sha256:...``.

        Where nothing but an environment goes into it, and that is not possible, the image below as it is.
        """
        destination, docker = self._destination, self._destination.docker
        key = wanted.planned.rpartition(":")[2]
        local_name = f"{LOCAL_REPOSITORY}:{key}"
        if self._code.context is not None:
            image = self._build(self._code.context, wanted, local_name, progress)
            return self._deliver(image, key, progress)
        try:
            base = self._present_base(wanted.image)
        except (EngineUnavailableError, ConfigError):  # no daemon, or no command
            if destination.in_daemon or not destination.repository:
                raise
            base = None
        toolkit, platform = wanted.toolkit, destination.platform
        has_code = toolkit or self._code.snapshot is not None  # else it travels in another way
        if base is None and not destination.in_daemon and destination.repository:
            name = f"{destination.repository}:{key}"
            below = self._add_environment(wanted, destination.repository, None, progress)
            if not has_code:
                return below or wanted.image
            patch = self._code.patch(below or wanted.image, name, with_toolkit=toolkit, platform=platform)
            return patch_in_registry(patch, destination.cache, progress)
        base = base or pull_image(docker, wanted.image, progress, platform)
        below = self._add_environment(wanted, LOCAL_REPOSITORY, base, progress)
        if not has_code:
            return self._deliver(below, key, progress) if below else wanted.image
        if below:
            base = {**base, "Id": below}  # all else is the same
        patch = self._code.patch(wanted.image, local_name, with_toolkit=toolkit, platform=platform)
        return self._deliver(patch_in_daemon(docker, base, patch, destination.cache, progress), key, progress)

    def _add_environment(
        self, wanted: WantedImage, repository: str, base: dict[str, Any] | None, progress: Progress
    ) -> str:
        """Make the image with a role's environment, unless it exists; "" if it cannot be made.

        Args:
            wanted: the image that the role needs.
            repository: where it is made.
            base: what the daemon says of the image below; None if it is made in a registry.
            progress: receives how far it is, and why it cannot be made.
        """
        description, destination = wanted.environment, self._destination
        if description is None:
            return ""
        name = f"{repository}:{image_key(description, wanted.image, destination.platform)}"
        docker = destination.docker if base is not None else None
        with work_folder() as folder:
            patch = patch_for(description, wanted.image, name, destination.platform, folder, docker, progress)
            try:
                if base is None:
                    image = patch_in_registry(patch, destination.cache, progress)
                else:
                    image = patch_in_daemon(destination.docker, base, patch, destination.cache, progress)
            except (CannotMakeError, InstallError, DockerRefused) as error:
                if is_out_of_space(str(error)):
                    raise OSError(errno.ENOSPC, str(error)) from error  # what follows needs room too
                reason = str(error).splitlines()[0].removeprefix(f"Cannot build {patch.what}: ")
                progress.done(
                    f"{patch.what} is installed at the start of the container, as it cannot be put into the "
                    f"image: {reason}"
                )
                return ""
        destination.cache.remember(True, "environment", name)  # `gc` asks when, and leaves those of others
        return image

    def _present_base(self, image: str) -> dict[str, Any] | None:
        """Return an image, if the daemon has it, and for the right platform."""
        known = inspect_image(self._destination.docker, image)
        if known is not None and self._destination.platform:
            has = [known.get("Os"), known.get("Architecture"), known.get("Variant")]
            platform = self._destination.platform.split("/")
            return known if has[: len(platform)] == platform else None
        return known

    def _build(self, context: BuildContext, wanted: WantedImage, name: str, progress: Progress) -> str:
        """Build the workspace's own Dockerfile. Unchanged steps are in Docker's own cache."""
        destination, docker = self._destination, self._destination.docker
        try:
            docker.facts()
        except (EngineUnavailableError, ConfigError) as error:
            raise ConfigError(
                f"the workspace has a {context.dockerfile}, which only Docker can build: {error.message}",
                hint=f"{error.hint} Or ship the files alone: rename {context.dockerfile}.",
            ) from error
        progress.step(f"building {context.dockerfile}")
        built = run_build(
            docker,
            context.content,
            f"{name}-built" if wanted.toolkit else name,
            self._code.labels(with_toolkit=False),
            progress,
            is_quiet=destination.quiet,
            dockerfile=context.dockerfile,
            arguments={IMAGE_ARG: nameable(docker, wanted.image), WORKSPACE_ARG: str(self._code.workspace)},
            platform=destination.platform,
            registries=context.registries(wanted.image),
        )
        if not wanted.toolkit:
            return str(built["Id"])
        patch = self._code.patch(
            wanted.image, name, with_workspace=False, with_toolkit=True, platform=destination.platform
        )
        return patch_in_daemon(docker, built, patch, destination.cache, progress)

    def _deliver(self, image: str, key: str, progress: Progress) -> str:
        """Push an image of the daemon, if it is to be pushed and is not there."""
        repository, docker = self._destination.repository, self._destination.docker
        if not repository:
            return image
        name = f"{repository}:{key}"
        # a daemon that runs the job itself has to know the digest
        digest = "" if self._destination.in_daemon else _pushed_digest(Reference.parse(name), image)
        if not digest:
            tag(docker, image, name)
            digest = push_image(docker, name, progress)
        pinned = f"{repository}@{digest}"
        progress.done(f"pushed {pinned}")
        return pinned


def _pushed_digest(target: Reference, image: str) -> str:
    """Return the digest of what the registry has under a name, if that is this image; else ""."""
    try:
        with RegistryClient(target.registry, patience=0) as client:
            document = client.manifest(target.repository, target.selector)
        if document is None:
            return ""
        config = parse_object(document.body, f"the manifest of {target}").get("config")
    except RegistryError:
        return ""  # the daemon may be able to reach it, and says so if it is not
    # the id is the configuration's digest; in a daemon that keeps images in containerd, the manifest's
    ids = (document.digest, config.get("digest") if isinstance(config, dict) else "")
    return document.digest if image in ids else ""
