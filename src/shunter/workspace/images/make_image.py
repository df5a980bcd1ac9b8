"""How an image with code is made: found, patched in a daemon or in a registry, or built; and delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shunter.docker.command import DockerCommand
from shunter.docker.daemon_errors import EngineUnavailableError
from shunter.docker.image_reference import Reference
from shunter.docker.images import inspect_image, pull_image, push_image, tag
from shunter.errors import ConfigError
from shunter.image_registry.client import RegistryClient
from shunter.image_registry.image_manifest import parse_object
from shunter.image_registry.registry_errors import RegistryError
from shunter.progress import Progress
from shunter.workspace.images.docker_build import BuildOutput, nameable, run_build
from shunter.workspace.images.dockerfile import IMAGE_ARG, WORKSPACE_ARG, BuildContext
from shunter.workspace.images.image_cache import ImageCache
from shunter.workspace.images.image_config import (
    LABEL_BASE,
    LABEL_BASE_DIGEST,
    LABEL_BASE_NAME,
    LABEL_FINGERPRINT,
)
from shunter.workspace.images.image_content import JobCode
from shunter.workspace.images.layer import tar_stream
from shunter.workspace.images.patch_in_daemon import patch_in_daemon
from shunter.workspace.images.patch_in_registry import RegistryPatch

#: Repository of patched images in a daemon.
LOCAL_REPOSITORY = "shunter/workspace"


@dataclass(frozen=True)
class WantedImage:
    """An image that a role needs.

    Attributes:
        image: the image below.
        toolkit: whether the toolkit goes into it.
        planned: what the request calls it until it is made.
    """

    image: str
    toolkit: bool
    planned: str


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


class CodeImage:
    """One image with the code in it."""

    def __init__(
        self, wanted: WantedImage, code: JobCode, destination: ImageDestination, progress: Progress
    ) -> None:
        self._wanted = wanted
        self._code = code
        self._destination = destination
        self._docker = destination.docker
        self._progress = progress
        self._tag = code.key(wanted.image, with_toolkit=wanted.toolkit, platform=destination.platform)
        self._local_name = f"{LOCAL_REPOSITORY}:{self._tag}"
        self._labels = code.labels(with_toolkit=wanted.toolkit)
        self._roots = code.roots(with_toolkit=wanted.toolkit)

    def make(self) -> str:
        """Return the image, exactly: ``sha256:...``, or ``repository@sha256:...``.

        Raises:
            WorkspaceChangedError: a file was changed meanwhile; nothing was made.
            ShunterError: it cannot be made; says what to do.
        """
        if self._code.context is not None:
            return self._deliver(self._build_dockerfile(self._code.context))
        if self._destination.in_daemon or not self._destination.repository:
            base = self._present_base()
            if base is None:
                base = pull_image(
                    self._docker, self._wanted.image, self._progress, self._destination.platform
                )
            return self._deliver(self._patched(base))
        try:
            base = self._present_base()
        except (EngineUnavailableError, ConfigError):  # no daemon, or no command
            base = None
        if base is None:
            return self._patched_in_registry()
        return self._deliver(self._patched(base))

    def _present_base(self) -> dict[str, Any] | None:
        """Return the image below, if the daemon has it, and for the right platform."""
        found = inspect_image(self._docker, self._wanted.image)
        if found is not None and self._destination.platform:
            has = [found.get("Os"), found.get("Architecture"), found.get("Variant")]
            wanted = self._destination.platform.split("/")
            return found if has[: len(wanted)] == wanted else None
        return found

    # ---- in a daemon

    def _patched(self, base: Mapping[str, Any], *, with_workspace: bool = True) -> str:
        """Return the id of the base with the code in it; makes it unless the daemon has it."""
        cargo = self._code.cargo(with_workspace=with_workspace, with_toolkit=self._wanted.toolkit)
        if cargo.is_in((base.get("Config") or {}).get("Labels"), self._labels):
            return str(base["Id"])
        labels = {**self._labels, LABEL_BASE: str(base["Id"]), LABEL_BASE_NAME: self._wanted.image}
        if digests := sorted(base.get("RepoDigests") or []):
            labels[LABEL_BASE_DIGEST] = digests[0].partition("@")[2]
        cache = self._destination.cache
        with cache.lock("daemon", self._docker.endpoint, self._local_name):
            known = inspect_image(self._docker, self._local_name)
            if known is not None:
                has = (known.get("Config") or {}).get("Labels") or {}
                if all(has.get(name) == labels.get(name) for name in (LABEL_BASE, LABEL_FINGERPRINT)):
                    return str(known["Id"])
            image = patch_in_daemon(
                self._docker, base, cargo, self._local_name, labels, self._roots, cache, self._progress
            )
        self._progress.done(f"made {image[:19]}: {self._wanted.image} with the code")
        return image

    def _build_dockerfile(self, context: BuildContext) -> str:
        try:
            self._docker.facts()
        except (EngineUnavailableError, ConfigError) as error:
            raise ConfigError(
                f"the workspace has a {context.dockerfile}, which only Docker can build: {error.message}",
                hint=f"{error.hint} Or ship the files alone: rename {context.dockerfile}.",
            ) from error
        self._progress.step(f"building {context.dockerfile}")
        image = self._wanted.image
        # unchanged steps are in Docker's own cache
        built = run_build(
            self._docker,
            tar_stream(context.content),
            f"{self._local_name}-built" if self._wanted.toolkit else self._local_name,
            self._code.labels(with_toolkit=False),
            output=BuildOutput(self._progress, self._destination.quiet),
            dockerfile=context.dockerfile,
            arguments={IMAGE_ARG: nameable(self._docker, image), WORKSPACE_ARG: str(self._code.workspace)},
            platform=self._destination.platform,
            registries=context.registries(image),
        )
        if self._wanted.toolkit:
            return self._patched(built, with_workspace=False)
        return str(built["Id"])

    # ---- to a registry

    def _deliver(self, image: str) -> str:
        """Push an image of the daemon, if it is to be pushed and is not there."""
        repository = self._destination.repository
        if not repository:
            return image
        name = f"{repository}:{self._tag}"
        target = Reference.parse(name)
        digest = self._pushed_digest(target, image)
        if not digest or (self._destination.in_daemon and not self._is_known_as(image, target, digest)):
            tag(self._docker, image, name)
            digest = push_image(self._docker, name, self._progress)
        pinned = f"{repository}@{digest}"
        self._progress.done(f"{pinned} has the code")
        return pinned

    def _pushed_digest(self, target: Reference, image: str) -> str:
        """Return the digest of what the registry has under the name, if that is this image; else ""."""
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

    def _patched_in_registry(self) -> str:
        return RegistryPatch(
            Reference.parse(self._wanted.image),
            Reference.parse(f"{self._destination.repository}:{self._tag}"),
            self._code.cargo(with_workspace=True, with_toolkit=self._wanted.toolkit),
            {**self._labels, LABEL_BASE_NAME: self._wanted.image},
            self._roots,
            self._destination.platform,
            self._destination.cache,
            self._progress,
        ).make()

    def _is_known_as(self, image: str, target: Reference, digest: str) -> bool:
        """Tell whether the daemon itself knows that an image has this digest in the repository."""
        known = inspect_image(self._docker, image) or {}
        return any(
            text.partition("@")[2] == digest and Reference.parse(text).name == target.name
            for text in known.get("RepoDigests") or []
        )
