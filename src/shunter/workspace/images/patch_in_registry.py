"""Images with code without a Docker daemon: the layer is written straight into a registry."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shunter._toolkit.environment_store import OF_IMAGE
from shunter.docker.image_reference import Reference
from shunter.image_registry.client import RegistryClient
from shunter.image_registry.image_manifest import (
    IMAGES,
    MANIFEST,
    RegistryImage,
    check,
    parse_object,
    read_config,
    read_image,
)
from shunter.image_registry.push import LayerFile, push_layers
from shunter.progress import Progress
from shunter.workspace.images.base_files import RegistryFiles
from shunter.workspace.images.image_cache import Anchor, ImageCache
from shunter.workspace.images.image_config import (
    DEFAULT_WORKING_DIR,
    HISTORY,
    LABEL_BASE,
    add_layers,
    working_dir,
)
from shunter.workspace.images.image_content import Patch
from shunter.workspace.images.layer import LayerContent, packing, small_change, work_folder, write_gzip

#: Directories that images have with root as owner and mode 0755, or not at all: not searched for.
_USUAL = ("opt", "opt/shunter", OF_IMAGE[1:])


def patch_in_registry(patch: Patch, cache: ImageCache, progress: Progress) -> str:
    """Make an image in a registry, unless it is there; returns it pinned, ``repository@sha256:...``.

    Raises:
        WorkspaceChangedError: a file is no longer what it was when it was hashed; nothing was pushed.
        ConfigError: nothing can be built on the base.
        RegistryError: a registry refuses, cannot be reached, or sends something else than an image.
        BackendError: this machine's disk is full.
    """
    base, target = Reference.parse(patch.base), Reference.parse(patch.name)
    with (
        RegistryClient(base.registry, progress=progress) as source,
        RegistryClient(target.registry, progress=progress) as other,
    ):
        destination = source if base.registry == target.registry else other
        image = read_image(source, base, patch.platform)
        labels = (image.config.get("config") or {}).get("Labels")
        if base.digest and base.name == target.name and patch.is_in(labels):
            return str(base)
        base_id = image.manifest["config"]["digest"]
        pinned = _find_pushed(destination, target, patch, base_id)
        if pinned:
            return pinned
        workdir = working_dir(image.config)
        # an image that names no working directory is unlikely to have the default one
        usual = [*_USUAL, DEFAULT_WORKING_DIR[1:]] if workdir == DEFAULT_WORKING_DIR else _USUAL
        content = patch.compose(image.config, RegistryFiles(source, image, cache, usual).lookup)
        key = (base_id, workdir, patch.roots, target.name)
        with work_folder() as folder:
            path = os.path.join(folder, "layer.tar.gz")
            anchor = cache.anchor(*key)
            layers = _over_anchor(destination, target, anchor, content, path, progress)
            if not layers:
                layers = [write_gzip(content, path, packing(content, progress))]
                anchor = Anchor(content.entries, layer=replace(layers[0], path=""))
            config = _configuration(image, patch, workdir, layers)
            pinned = push_layers(source, destination, image, target, layers, config, progress)
        assert anchor is not None
        cache.set_anchor(anchor, *key)
        return pinned


def _find_pushed(destination: RegistryClient, target: Reference, patch: Patch, base_id: str) -> str:
    """Return the image pinned, if it is in its registry with its labels; else ""."""
    document = destination.manifest(target.repository, target.selector)
    if document is None or document.media_type not in IMAGES:
        return ""
    manifest = parse_object(document.body, f"the manifest of {target}")
    check(manifest, MANIFEST, f"the manifest of {target}")
    config = read_config(destination, target, manifest)
    is_made = patch.is_made((config.get("config") or {}).get("Labels"), base_id)
    return str(target.pinned(document.digest)) if is_made else ""


def _over_anchor(
    destination: RegistryClient,
    target: Reference,
    anchor: Anchor | None,
    content: LayerContent,
    path: str,
    progress: Progress,
) -> list[LayerFile]:
    """Return the anchor and what goes on top of it; nothing where the whole layer is to be made."""
    if anchor is None or anchor.layer is None:
        return []
    change = small_change(anchor.entries, content)
    if change is None or not destination.blob_exists(target.repository, anchor.layer.digest):
        return []
    if not change.entries:
        return [anchor.layer]
    return [anchor.layer, write_gzip(change, path, packing(change, progress))]


def _configuration(
    image: RegistryImage, patch: Patch, workdir: str, layers: Sequence[LayerFile]
) -> dict[str, Any]:
    own = (image.config.get("config") or {}).get("WorkingDir", "")
    return add_layers(
        image.config,
        [layer.diff_id for layer in layers],
        workdir=workdir if patch.cargo.entries is not None else own,
        labels={**patch.labels, LABEL_BASE: image.manifest["config"]["digest"]},
        history=HISTORY[: len(layers)],
    )
