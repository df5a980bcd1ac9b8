"""How one image comes about: found, patched in a daemon, patched in a registry, or built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.docker.engine import Engine, EngineUnavailableError
from trainyard.docker.image_store import inspect_image, tag
from trainyard.errors import ConfigError
from trainyard.workspace.images.image_config import (
    LABEL_BASE,
    LABEL_BASE_DIGEST,
    LABEL_BASE_NAME,
    LABEL_FINGERPRINT,
)

if TYPE_CHECKING:
    from trainyard.docker.image_reference import Reference
    from trainyard.progress import Progress
    from trainyard.workspace.images.code import Code
    from trainyard.workspace.images.context import Context
    from trainyard.workspace.images.image_cache import ImageCache

#: Repository of patched images in a daemon.
LOCAL_REPOSITORY = "trainyard/workspace"


@dataclass(frozen=True)
class Wanted:
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
class Way:
    """Where images are made and go.

    Attributes:
        engine: gives the Docker daemon's client; contacts nothing.
        repository: repository in a registry that they are pushed to; "" for none.
        in_daemon: whether jobs run in the daemon, so that it must have them.
        quiet: whether the output of builds is shown only if they fail.
        cache: what is remembered from the last time.
        platform: ``linux/arm64`` and the like; by default the daemon's own, or this machine's.
    """

    engine: Callable[[], Engine]
    repository: str
    in_daemon: bool
    quiet: bool
    cache: ImageCache
    platform: str | None = None


def make(wanted: Wanted, code: Code, way: Way, progress: Progress) -> str:
    """Return an image with the code in it, exactly: ``sha256:...``, or ``repository@sha256:...``.

    Raises:
        WorkspaceChangedError: a file was changed meanwhile; nothing was made.
        TrainyardError: it cannot be made; says what to do.
    """
    return _Making(wanted, code, way, progress).run()


class _Making:
    def __init__(self, wanted: Wanted, code: Code, way: Way, progress: Progress) -> None:
        self._wanted = wanted
        self._code = code
        self._way = way
        self._progress = progress
        self._tag = code.key(wanted.image, with_toolkit=wanted.toolkit, platform=way.platform)
        self._local_name = f"{LOCAL_REPOSITORY}:{self._tag}"

    def run(self) -> str:
        if self._code.context is not None:
            return self._deliver(*self._by_dockerfile(self._code.context))
        if self._way.in_daemon or not self._way.repository:
            engine = self._way.engine()
            return self._deliver(engine, self._over(engine, self._base(engine)))
        engine_if_up = self._engine_if_up()
        base = self._present_base(engine_if_up) if engine_if_up else None
        if engine_if_up is None or base is None:
            return self._in_registry()
        return self._deliver(engine_if_up, self._over(engine_if_up, base))

    def _engine_if_up(self) -> Engine | None:
        engine = self._way.engine()
        try:
            return engine if engine.api_version else None
        except EngineUnavailableError:
            return None

    def _base(self, engine: Engine) -> dict[str, Any]:
        found = self._present_base(engine)
        if found is not None:
            return found
        from trainyard.workspace.images.transfer import pull_image

        return pull_image(engine, self._wanted.image, self._progress, self._way.platform)

    def _present_base(self, engine: Engine) -> dict[str, Any] | None:
        """Return the image below, if the daemon has it, and for the right platform."""
        found = inspect_image(engine, self._wanted.image)
        if found is not None and self._way.platform:
            has = [found.get("Os"), found.get("Architecture"), found.get("Variant")]
            wanted = self._way.platform.split("/")
            return found if has[: len(wanted)] == wanted else None
        return found

    # ---- in a daemon

    def _over(self, engine: Engine, base: Mapping[str, Any], *, with_workspace: bool = True) -> str:
        """Return the id of the base with the code in it; makes it unless the daemon has it."""
        own = self._code.labels_of(with_toolkit=self._wanted.toolkit)
        cargo = self._code.cargo(with_workspace=with_workspace, with_toolkit=self._wanted.toolkit)
        if cargo.is_in((base.get("Config") or {}).get("Labels"), own):
            return str(base["Id"])
        labels = {**own, **_base_labels(self._wanted.image, base)}
        found = inspect_image(engine, self._local_name)
        if found is not None and _has_labels(found, labels):
            return str(found["Id"])
        from trainyard.workspace.images.patch_in_daemon import Order, patch

        roots = self._code.roots(with_toolkit=self._wanted.toolkit)
        order = Order(base, cargo, self._local_name, labels, roots)
        image = patch(engine, order, self._way.cache, self._progress)
        self._progress.done(f"made {image[:19]}: {self._wanted.image} with the code")
        return image

    def _by_dockerfile(self, context: Context) -> tuple[Engine, str]:
        from trainyard.workspace.images import docker_build

        engine = self._way.engine()
        try:
            engine.api_version  # noqa: B018 - asks the daemon
        except EngineUnavailableError as error:
            raise ConfigError(
                f"the workspace has a {context.dockerfile}, which only Docker can build: {error.message}",
                hint=f"{error.hint} Or ship the files alone: rename {context.dockerfile}.",
            ) from error
        name = f"{self._local_name}-built" if self._wanted.toolkit else self._local_name
        built = docker_build.build(
            engine,
            context,
            name,
            image=self._wanted.image,
            workspace=str(self._code.workspace),
            labels=self._code.labels,
            cache=self._way.cache,
            progress=self._progress,
            quiet=self._way.quiet,
            platform=self._way.platform,
        )
        if self._wanted.toolkit:
            return engine, self._over(engine, built, with_workspace=False)
        return engine, str(built["Id"])

    # ---- to a registry

    def _deliver(self, engine: Engine, image: str) -> str:
        """Push an image of the daemon, if it is to be pushed and is not there."""
        if not self._way.repository:
            return image
        from trainyard.docker.image_reference import Reference
        from trainyard.workspace.images.transfer import push_image

        name = f"{self._way.repository}:{self._tag}"
        target = Reference.parse(name)
        digest = self._pushed_digest(target, image)
        if not digest or (self._way.in_daemon and not _is_known_as(engine, image, target, digest)):
            tag(engine, image, name)
            digest = push_image(engine, name, self._progress)
        pinned = f"{self._way.repository}@{digest}"
        self._progress.done(f"{pinned} has the code")
        return pinned

    def _pushed_digest(self, target: Reference, image: str) -> str:
        """Return the digest of what the registry has under the name, if that is this image; else ""."""
        from trainyard.image_registry.client import RegistryClient
        from trainyard.image_registry.image_manifest import parse_object
        from trainyard.image_registry.registry_errors import RegistryError

        try:
            with RegistryClient(target.registry, patience=0) as client:
                document = client.manifest(target.repository, target.selector)
            if document is None:
                return ""
            config = parse_object(document.body, f"the manifest of {target}").get("config")
        except RegistryError:
            return ""  # the daemon may know better how to reach it, and says so if it does not
        return document.digest if isinstance(config, dict) and config.get("digest") == image else ""

    def _in_registry(self) -> str:
        from trainyard.docker.image_reference import Reference
        from trainyard.workspace.images.patch_in_registry import RemoteOrder, patch_remotely

        code = self._code
        order = RemoteOrder(
            Reference.parse(self._wanted.image),
            Reference.parse(f"{self._way.repository}:{self._tag}"),
            code.cargo(with_workspace=True, with_toolkit=self._wanted.toolkit),
            {**code.labels_of(with_toolkit=self._wanted.toolkit), LABEL_BASE_NAME: self._wanted.image},
            code.roots(with_toolkit=self._wanted.toolkit),
            self._way.platform,
        )
        return patch_remotely(order, self._way.cache, self._progress)


def _base_labels(name: str, base: Mapping[str, Any]) -> dict[str, str]:
    labels = {LABEL_BASE: str(base["Id"]), LABEL_BASE_NAME: name}
    digests = sorted(base.get("RepoDigests") or [])
    return {**labels, LABEL_BASE_DIGEST: digests[0].partition("@")[2]} if digests else labels


def _has_labels(image: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    has = (image.get("Config") or {}).get("Labels") or {}
    return all(has.get(name) == labels.get(name) for name in (LABEL_BASE, LABEL_FINGERPRINT))


def _is_known_as(engine: Engine, image: str, target: Reference, digest: str) -> bool:
    """Tell whether the daemon itself knows that an image has this digest in the repository."""
    from trainyard.docker.image_reference import Reference

    known = inspect_image(engine, image)
    return any(
        text.partition("@")[2] == digest and Reference.parse(text).name == target.name
        for text in (known or {}).get("RepoDigests") or []
    )
