"""Images that a workspace's own Dockerfile makes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainyard.docker.credentials import credentials_for
from trainyard.docker.engine import Engine
from trainyard.docker.image_reference import Reference
from trainyard.docker.image_store import inspect_image, tag
from trainyard.errors import ConfigError
from trainyard.workspace.images.builder import (
    build_on_engine,
    build_with_buildkit,
    find_buildkit,
    registry_config,
)
from trainyard.workspace.images.dockerfile import IMAGE_ARG, WORKSPACE_ARG, Dockerfile, parse
from trainyard.workspace.images.layer import tar_stream

if TYPE_CHECKING:
    from trainyard.progress import Progress
    from trainyard.workspace.images.context import Context
    from trainyard.workspace.images.image_cache import ImageCache

_IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{64}")


def build(
    engine: Engine,
    context: Context,
    name: str,
    *,
    image: str,
    workspace: str,
    labels: Mapping[str, str],
    cache: ImageCache,
    progress: Progress,
    quiet: bool,
    platform: str | None = None,
) -> dict[str, Any]:
    """Build the image, unless it is there; returns what `inspect_image` says of it.

    It is there if it has the name and none of the images that its Dockerfile names has changed since.

    Args:
        engine: the daemon.
        context: what it is built with.
        name: repository and tag that it gets; they stand for the context and all arguments.
        image: the role's image, build argument ``IMAGE``.
        workspace: the workspace in words, build argument ``WORKSPACE``.
        labels: labels that it gets.
        cache: where it is remembered which bases it was built from.
        progress: gets the output, unless ``quiet``.
        quiet: whether the output is shown only if the build fails.
        platform: what it is built for; the daemon's own by default.

    Raises:
        BackendError: the build failed.
        ConfigError: the Dockerfile needs BuildKit, and there is none.
    """
    arguments = {IMAGE_ARG: image, WORKSPACE_ARG: workspace}
    needs = parse(context.text, arguments)
    found = inspect_image(engine, name)
    built = cache.recall("built", engine.endpoint, name)
    if found is not None and built == [found["Id"], _ids(engine, needs)]:
        return found
    progress.step(f"building {context.dockerfile}")
    made = _build(engine, context, needs, arguments, labels, progress, quiet, platform)
    result = inspect_image(engine, made)
    if result is None:
        raise ConfigError(
            f"{context.dockerfile} was built, but the daemon at {engine.endpoint} does not have the image",
            hint="Does the `docker` command use another daemon or builder? See `docker context ls`.",
        )
    tag(engine, made, name)
    cache.remember([result["Id"], _ids(engine, needs)], "built", engine.endpoint, name)
    return result


def _ids(engine: Engine, needs: Dockerfile) -> dict[str, str]:
    """Return the ids of the bases, as far as the daemon has them; BuildKit keeps what it pulled to itself."""
    found = {base: inspect_image(engine, base) for base in needs.bases}
    return {base: image["Id"] if image else "" for base, image in found.items()}


def _build(
    engine: Engine,
    context: Context,
    needs: Dockerfile,
    arguments: Mapping[str, str],
    labels: Mapping[str, str],
    progress: Progress,
    quiet: bool,
    platform: str | None,
) -> str:
    stream = tar_stream(context.content)
    buildkit = find_buildkit(engine)
    if buildkit is not None:
        command, environ = buildkit
        given = {**arguments, IMAGE_ARG: _nameable(engine, arguments[IMAGE_ARG])}
        command = [*command, "--platform", platform] if platform else command
        return build_with_buildkit(
            command, environ, stream, context.dockerfile, given, labels, progress, quiet=quiet
        )
    if needs.buildkit:
        raise ConfigError(
            f"{context.dockerfile} needs BuildKit ({needs.buildkit}), which cannot be used here",
            hint="Install the docker command with its buildx plugin, or write the Dockerfile without it.",
        )
    hosts = {Reference.parse(base).registry for base in needs.bases if not _IMAGE_ID.fullmatch(base)}
    header = registry_config({host: known for host in hosts if (known := credentials_for(host))})
    return build_on_engine(
        engine,
        stream,
        context.dockerfile,
        arguments,
        labels,
        progress,
        quiet=quiet,
        registry_config=header,
        platform=platform,
    )


def _nameable(engine: Engine, image: str) -> str:
    """Return a name for an image: BuildKit takes an id for the name of an image in a registry."""
    if not _IMAGE_ID.fullmatch(image) or inspect_image(engine, image) is None:
        return image
    name = f"trainyard/base:{image.removeprefix('sha256:')}"
    tag(engine, image, name)
    return name
