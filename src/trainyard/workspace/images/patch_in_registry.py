"""Patched images without a Docker daemon: the layer is written straight into a registry."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trainyard.docker.image_reference import Reference
from trainyard.errors import BackendError
from trainyard.image_registry.client import RegistryClient
from trainyard.image_registry.image_manifest import (
    IMAGES,
    RegistryImage,
    check_manifest,
    parse_object,
    read_config,
    read_image,
)
from trainyard.image_registry.push import LayerFile, append_layer
from trainyard.image_registry.registry_errors import RegistryError
from trainyard.workspace.images.delta import LARGEST_PART, difference
from trainyard.workspace.images.image_config import (
    DEFAULT_WORKING_DIR,
    LABEL_BASE,
    LABEL_FINGERPRINT,
    add_layers,
    working_dir,
)
from trainyard.workspace.images.image_content import Cargo
from trainyard.workspace.images.layer import LayerContent, LayerDigests, tar_size, write_gzip
from trainyard.workspace.images.remotefiles import RemoteFiles

if TYPE_CHECKING:
    from trainyard.progress import Progress
    from trainyard.workspace.images.image_cache import ImageCache

_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
#: Directories that images have with root as owner and mode 0755, or not at all: not searched for.
_USUAL = ("opt", "opt/trainyard")


@dataclass(frozen=True)
class RemoteOrder:
    """An image to be made in a registry.

    Attributes:
        base: the image below.
        target: repository and tag.
        cargo: what goes on top.
        labels: labels that it gets; those about the base are added.
        roots: names the workspace's directories, so that layers of the same ones are told apart.
        platform: which of several images of the base; this machine's by default.
    """

    base: Reference
    target: Reference
    cargo: Cargo
    labels: Mapping[str, str]
    roots: str
    platform: str | None = None


def patch_remotely(order: RemoteOrder, cache: ImageCache, progress: Progress) -> str:
    """Make an image in a registry, unless it is there; returns it pinned, ``repository@sha256:...``.

    Raises:
        WorkspaceChangedError: a file is no longer what it was when it was hashed; nothing was pushed.
        ConfigError: the base cannot be built upon.
        RegistryError: a registry refuses, stays away, or sends what is not an image.
        BackendError: this machine's disk is full.
    """
    with RegistryClient(order.base.registry, progress=progress) as client:
        base = read_image(client, order.base, order.platform)
        below = (base.config.get("config") or {}).get("Labels")
        if (
            order.base.digest
            and order.base.name == order.target.name
            and order.cargo.is_in(below, order.labels)
        ):
            return str(order.base)
        labels = {**order.labels, LABEL_BASE: base.manifest["config"]["digest"]}
        pinned = find_pushed(order.target, labels, progress)
        if pinned:
            return pinned
        workdir = working_dir(base.config)
        # an image that names no working directory has hardly the one that is chosen for it
        unnamed = workdir == DEFAULT_WORKING_DIR
        usual = [*_USUAL, DEFAULT_WORKING_DIR[1:]] if unnamed else _USUAL
        content = order.cargo.compose(workdir, RemoteFiles(client, base, cache, usual).look)
    pushing = _Pushing(replace(order, labels=labels), base, workdir, content, cache, progress)
    return pushing.run()


def find_pushed(target: Reference, labels: Mapping[str, str], progress: Progress) -> str:
    """Return an image pinned, if it is in its registry with these labels; else ""."""
    with RegistryClient(target.registry, progress=progress) as client:
        document = client.manifest(target.repository, target.selector)
        if document is None or document.media_type not in IMAGES:
            return ""
        manifest = parse_object(document.body, f"the manifest of {target}")
        check_manifest(manifest, f"the manifest of {target}")
        config = read_config(client, target, manifest)
    has = (config.get("config") or {}).get("Labels") or {}
    same = all(has.get(name) == labels.get(name) for name in (LABEL_BASE, LABEL_FINGERPRINT))
    return str(target.pinned(document.digest)) if same else ""


class _Pushing:
    """One image on its way to a registry."""

    def __init__(
        self,
        order: RemoteOrder,
        base: RegistryImage,
        workdir: str,
        content: LayerContent,
        cache: ImageCache,
        progress: Progress,
    ) -> None:
        self._order = order
        self._base = base
        self._workdir = workdir
        self._content = content
        self._cache = cache
        self._progress = progress
        self._key = (base.manifest["config"]["digest"], workdir, order.roots, order.target.name)

    def run(self) -> str:
        with _work_folder() as folder:
            layers = self._delta(folder)
            if layers is not None:
                with contextlib.suppress(_AnchorGoneError):
                    return self._append(layers)
            digests = self._write(self._content, os.path.join(folder, "layer.tar.gz"))
            pinned = self._append([_layer_file(os.path.join(folder, "layer.tar.gz"), digests)])
            self._cache.drop_anchor(self._content.entries, digests, *self._key)
            return pinned

    def _delta(self, folder: str) -> list[LayerFile] | None:
        """Return the anchor and what goes on top of it; None where the whole layer is to be made."""
        anchor = self._cache.anchor(*self._key)
        if anchor is None or not anchor.digests.gzip_digest:
            return None
        delta = difference(anchor.entries, self._content.entries)
        if delta.doubtful or tar_size(delta.entries) > LARGEST_PART * tar_size(self._content.entries):
            return None  # whether the base has a path could only be told by reading all of it
        with RegistryClient(self._order.target.registry, progress=self._progress) as client:
            if not client.blob_exists(self._order.target.repository, anchor.digests.gzip_digest):
                return None
        layers = [_layer_file("", anchor.digests)]
        if delta.entries:
            path = os.path.join(folder, "delta.tar.gz")
            digests = self._write(replace(self._content, entries=delta.entries), path)
            layers.append(_layer_file(path, digests))
        return layers

    def _write(self, content: LayerContent, path: str) -> LayerDigests:
        total = tar_size(content.entries)
        self._progress.step(f"packing {total / 1e6:.1f} MB")
        return write_gzip(
            content, path, advance=lambda done: self._progress.advance("packing the layer", done, total)
        )

    def _append(self, layers: list[LayerFile]) -> str:
        def configure(config: dict[str, Any]) -> dict[str, Any]:
            with_workspace = self._order.cargo.entries is not None
            own = (config.get("config") or {}).get("WorkingDir", "")
            return add_layers(
                config,
                [layer.diff_id for layer in layers],
                workdir=self._workdir if with_workspace else own,
                labels=self._order.labels,
                history=["trainyard: workspace", "trainyard: changes of the workspace"][: len(layers)],
            )

        # exactly the image that was looked into, though its tag may be another's by now
        exact = replace(self._order.base, digest=self._base.selected_digest)
        try:
            return append_layer(
                exact,
                self._order.target,
                layers,
                configure,
                platform=self._base.platform,
                progress=self._progress,
            )
        except RegistryError as error:
            if error.status in (400, 404) and not layers[0].path:
                raise _AnchorGoneError from error
            raise


class _AnchorGoneError(Exception):
    """The registry has removed the anchor's blob since it was asked."""


def _layer_file(path: str, digests: LayerDigests) -> LayerFile:
    return LayerFile(path, digests.diff_id, digests.gzip_digest, digests.gzip_size, _LAYER_TYPE)


@contextlib.contextmanager
def _work_folder() -> Iterator[str]:
    """Give a folder for layers, removed afterwards, whatever happens."""
    try:
        with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
            yield folder
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise BackendError(
            f"the layer cannot be written: {tempfile.gettempdir()} is full",
            hint="Free space there, or let TMPDIR name a directory with more. Nothing was pushed.",
        ) from error
