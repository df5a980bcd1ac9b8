"""Images with code without a Docker daemon: the layer is written straight into a registry."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shunter.docker.image_reference import Reference
from shunter.errors import BackendError
from shunter.image_registry.client import RegistryClient
from shunter.image_registry.image_manifest import (
    IMAGES,
    RegistryImage,
    check_manifest,
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
    LABEL_FINGERPRINT,
    add_layers,
    working_dir,
)
from shunter.workspace.images.image_content import Cargo
from shunter.workspace.images.layer import (
    LayerContent,
    changed_entries,
    is_small,
    tar_size,
    with_parents,
    write_gzip,
)

#: Directories that images have with root as owner and mode 0755, or not at all: not searched for.
_USUAL = ("opt", "opt/shunter")


class RegistryPatch:
    """Makes one image in a registry: another one with code on top.

    Args:
        base: the image below.
        target: repository and tag.
        cargo: what goes on top.
        labels: labels that the image gets; the base's id is added.
        roots: names the workspace's directories, so that only layers of the same ones are compared.
        platform: which of several images of the base; this machine's by default.
        cache: what is remembered from the last time.
        progress: receives how far it is.
    """

    def __init__(
        self,
        base: Reference,
        target: Reference,
        cargo: Cargo,
        labels: Mapping[str, str],
        roots: str,
        platform: str | None,
        cache: ImageCache,
        progress: Progress,
    ) -> None:
        self._base = base
        self._target = target
        self._cargo = cargo
        self._labels = labels
        self._roots = roots
        self._platform = platform
        self._cache = cache
        self._progress = progress

    def make(self) -> str:
        """Make the image, unless it is there; returns it pinned, ``repository@sha256:...``.

        Raises:
            WorkspaceChangedError: a file is no longer what it was when it was hashed; nothing was pushed.
            ConfigError: nothing can be built on the base.
            RegistryError: a registry refuses, cannot be reached, or sends something else than an image.
            BackendError: this machine's disk is full.
        """
        base, target = self._base, self._target
        with (
            RegistryClient(base.registry, progress=self._progress) as source,
            RegistryClient(target.registry, progress=self._progress) as other,
        ):
            destination = source if base.registry == target.registry else other
            image = read_image(source, base, self._platform)
            below = (image.config.get("config") or {}).get("Labels")
            if base.digest and base.name == target.name and self._cargo.is_in(below, self._labels):
                return str(base)
            self._labels = {**self._labels, LABEL_BASE: image.manifest["config"]["digest"]}
            pinned = self._find_pushed(destination)
            if pinned:
                return pinned
            workdir = working_dir(image.config)
            # an image that names no working directory is unlikely to have the default one
            usual = [*_USUAL, DEFAULT_WORKING_DIR[1:]] if workdir == DEFAULT_WORKING_DIR else _USUAL
            files = RegistryFiles(source, image, self._cache, usual)
            content = self._cargo.compose(workdir, files.lookup)
            key = (image.manifest["config"]["digest"], workdir, self._roots, target.name)
            with _work_folder() as folder:
                layers = self._delta(destination, content, key, folder)
                if layers is None:
                    layers = [self._write(content, os.path.join(folder, "layer.tar.gz"))]
                config = self._configuration(image, workdir, layers)
                pinned = push_layers(source, destination, image, target, layers, config, self._progress)
            if layers[0].path:
                self._cache.set_anchor(Anchor(content.entries, layer=replace(layers[0], path="")), *key)
            return pinned

    def _find_pushed(self, destination: RegistryClient) -> str:
        """Return the image pinned, if it is in its registry with its labels; else ""."""
        target = self._target
        document = destination.manifest(target.repository, target.selector)
        if document is None or document.media_type not in IMAGES:
            return ""
        manifest = parse_object(document.body, f"the manifest of {target}")
        check_manifest(manifest, f"the manifest of {target}")
        config = read_config(destination, target, manifest)
        has = (config.get("config") or {}).get("Labels") or {}
        same = all(has.get(name) == self._labels.get(name) for name in (LABEL_BASE, LABEL_FINGERPRINT))
        return str(target.pinned(document.digest)) if same else ""

    def _delta(
        self, destination: RegistryClient, content: LayerContent, key: tuple[object, ...], folder: str
    ) -> list[LayerFile] | None:
        """Return the anchor and what goes on top of it; None where the whole layer is to be made."""
        anchor = self._cache.anchor(*key)
        if anchor is None or anchor.layer is None:
            return None
        changed = changed_entries(anchor.entries, content.entries)
        if changed is None or not is_small(changed, content.entries):
            return None
        if not destination.blob_exists(self._target.repository, anchor.layer.digest):
            return None
        layers = [anchor.layer]
        if changed:
            path = os.path.join(folder, "delta.tar.gz")
            delta = replace(content, entries=with_parents(changed, content.entries))
            layers.append(self._write(delta, path))
        return layers

    def _write(self, content: LayerContent, path: str) -> LayerFile:
        total = tar_size(content.entries)
        self._progress.step(f"packing {total / 1e6:.1f} MB")
        return write_gzip(
            content, path, advance=lambda done: self._progress.advance("packing the layer", done, total)
        )

    def _configuration(
        self, image: RegistryImage, workdir: str, layers: Sequence[LayerFile]
    ) -> dict[str, Any]:
        own = (image.config.get("config") or {}).get("WorkingDir", "")
        return add_layers(
            image.config,
            [layer.diff_id for layer in layers],
            workdir=workdir if self._cargo.entries is not None else own,
            labels=self._labels,
            history=HISTORY[: len(layers)],
        )


@contextlib.contextmanager
def _work_folder() -> Iterator[str]:
    """Give a folder for layers, removed afterwards, whatever happens."""
    try:
        with tempfile.TemporaryDirectory(prefix="shunter-") as folder:
            yield folder
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise BackendError(
            f"the layer cannot be written: {tempfile.gettempdir()} is full",
            hint="Free space there, or let TMPDIR name a directory with more. Nothing was pushed.",
        ) from error
