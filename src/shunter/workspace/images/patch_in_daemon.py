"""Images with code through a Docker daemon: it adds a layer to an image that it has.

The daemon unpacks the layer over the image, so directories that are there keep their owners and modes, and
links among them are followed. A small change is built over the last image that was made whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shunter.docker.command import DockerCommand
from shunter.docker.images import inspect_image
from shunter.progress import Progress
from shunter.workspace.images.docker_build import BuildOutput, nameable, run_build
from shunter.workspace.images.image_cache import Anchor, ImageCache
from shunter.workspace.images.image_config import DEFAULT_WORKING_DIR, working_dir
from shunter.workspace.images.image_content import Cargo
from shunter.workspace.images.layer import (
    LayerContent,
    LayerEntry,
    changed_entries,
    is_small,
    tar_size,
    tar_stream,
)

_LABEL = "sending the layer to Docker"


def patch_in_daemon(
    docker: DockerCommand,
    base: Mapping[str, Any],
    cargo: Cargo,
    name: str,
    labels: Mapping[str, str],
    roots: str,
    cache: ImageCache,
    progress: Progress,
) -> str:
    """Make an image in a daemon: one that it has, with code on top. Returns its id (``sha256:...``).

    Args:
        docker: the command for the daemon.
        base: what `inspect_image` says of the image below.
        cargo: what goes on top.
        name: repository and tag, which the image gets at the very end.
        labels: labels that the image gets.
        roots: names the workspace's directories, so that only layers of the same ones are compared.
        cache: what is remembered from the last time.
        progress: receives how far it is.

    Raises:
        WorkspaceChangedError: a file is no longer what it was when it was hashed; nothing was made.
        BackendError: the daemon could not.
    """
    workdir = working_dir({"config": base.get("Config")})
    # an image's own is left as it is: a name with a $ cannot be written unchanged
    is_set = cargo.entries is not None and workdir == DEFAULT_WORKING_DIR
    # BuildKit looks in registries for an image whose platform is not the daemon's, unless it is named
    parts = [str(base.get(part) or "") for part in ("Os", "Architecture", "Variant")]
    platform = "/".join(parts).rstrip("/") if all(parts[:2]) else None

    def build(below: str, content: LayerContent) -> str:
        lines = [f"FROM {nameable(docker, below)}", "ADD layer.tar /"]
        context = _context([*lines, f"WORKDIR {workdir}"] if is_set else lines, content, progress)
        output = BuildOutput(progress)
        built = run_build(docker, tar_stream(context), name, labels, output=output, platform=platform)
        return str(built["Id"])

    content = cargo.compose(workdir)
    key = (base["Id"], workdir, roots, f"daemon {docker.endpoint}")
    anchor = cache.anchor(*key)
    if anchor is not None and inspect_image(docker, anchor.image) is not None:
        changed = changed_entries(anchor.entries, content.entries)
        if changed is not None and is_small(changed, content.entries):
            return build(anchor.image, replace(content, entries=changed))
    image = build(str(base["Id"]), content)
    cache.set_anchor(Anchor(content.entries, image), *key)
    return image


def _context(lines: Sequence[str], content: LayerContent, progress: Progress) -> LayerContent:
    """Return a build's context: a Dockerfile of these lines, and the layer, whose sending is reported."""
    text = "".join(f"{line}\n" for line in lines).encode()
    size = tar_size(content.entries)
    progress.step(f"{_LABEL}: {size / 1e6:.1f} MB")

    def layer() -> Iterator[bytes]:
        done = 0
        for piece in tar_stream(content):
            yield piece
            done += len(piece)
            progress.advance(_LABEL, done, size)

    entries = (
        LayerEntry("Dockerfile", "file", 0o644, size=len(text)),
        LayerEntry("layer.tar", "file", 0o644, size=size),
    )
    return LayerContent(entries, lambda entry: (text,) if entry.path == "Dockerfile" else layer())
