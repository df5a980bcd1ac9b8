"""Images with code through a Docker daemon: it adds a layer to an image that it has.

The daemon unpacks the layer over the image, so directories that are there keep their owners and modes, and
links among them are followed. A small change is built over the last image that was made whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shunter.docker.command import DockerCommand
from shunter.docker.images import inspect_image
from shunter.progress import Progress
from shunter.workspace.images.docker_build import nameable, run_build
from shunter.workspace.images.image_cache import Anchor, ImageCache
from shunter.workspace.images.image_config import (
    DEFAULT_WORKING_DIR,
    LABEL_BASE,
    LABEL_BASE_DIGEST,
    working_dir,
)
from shunter.workspace.images.image_content import Patch
from shunter.workspace.images.layer import LayerContent, small_change, tar_size, tar_stream
from shunter.workspace.manifest import Entry


def patch_in_daemon(
    docker: DockerCommand, base: Mapping[str, Any], patch: Patch, cache: ImageCache, progress: Progress
) -> str:
    """Make an image in a daemon, unless it has it; returns its id (``sha256:...``).

    Args:
        docker: the command for the daemon.
        base: what `inspect_image` says of the image below.
        patch: the image.
        cache: what is remembered from the last time.
        progress: receives how far it is.

    Raises:
        WorkspaceChangedError: a file is no longer what it was when it was hashed; nothing was made.
        BackendError: the daemon could not.
    """
    if patch.is_in((base.get("Config") or {}).get("Labels")):
        return str(base["Id"])
    with cache.lock("daemon", docker.endpoint, patch.name):
        known = inspect_image(docker, patch.name)
        if known is not None and patch.is_made((known.get("Config") or {}).get("Labels"), base["Id"]):
            return str(known["Id"])
        image = _make(docker, base, patch, cache, progress)
    progress.done(f"made {image[:19]}: {patch.base} with {patch.what}")
    return image


def _make(
    docker: DockerCommand, base: Mapping[str, Any], patch: Patch, cache: ImageCache, progress: Progress
) -> str:
    labels = {**patch.labels, LABEL_BASE: str(base["Id"])}
    if digests := sorted(base.get("RepoDigests") or []):
        labels[LABEL_BASE_DIGEST] = digests[0].partition("@")[2]
    workdir = working_dir({"config": base.get("Config")})
    # an image's own is left as it is: a name with a $ cannot be written unchanged
    is_set = patch.cargo.entries is not None and workdir == DEFAULT_WORKING_DIR
    # BuildKit looks in registries for an image whose platform is not the daemon's, unless it is named
    parts = [str(base.get(part) or "") for part in ("Os", "Architecture", "Variant")]
    platform = "/".join(parts).rstrip("/") if all(parts[:2]) else None

    def build(below: str, content: LayerContent) -> str:
        lines = [f"FROM {nameable(docker, below)}", "ADD layer.tar /"]
        context = _context([*lines, f"WORKDIR {workdir}"] if is_set else lines, content)
        built = run_build(docker, context, patch.name, labels, progress, platform=platform)
        return str(built["Id"])

    content = patch.compose({"config": base.get("Config")})
    key = (base["Id"], workdir, patch.roots, f"daemon {docker.endpoint}")
    anchor = cache.anchor(*key)
    if anchor is not None and inspect_image(docker, anchor.image) is not None:
        change = small_change(anchor.entries, content)
        if change is not None:
            return build(anchor.image, change)
    image = build(str(base["Id"]), content)
    cache.set_anchor(Anchor(content.entries, image), *key)
    return image


def _context(lines: list[str], content: LayerContent) -> LayerContent:
    """Return a build's context: a Dockerfile of these lines, and the layer."""
    text = "".join(f"{line}\n" for line in lines).encode()
    entries = (
        Entry("Dockerfile", "file", 0o644, size=len(text)),
        Entry("layer.tar", "file", 0o644, size=tar_size(content.entries)),
    )
    return LayerContent(entries, lambda entry: (text,) if entry.path == "Dockerfile" else tar_stream(content))
