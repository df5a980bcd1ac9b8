"""Pushing a new image: an existing one with more layers. Nothing of it is kept on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shunter.docker.image_reference import Reference
from shunter.errors import ConfigError
from shunter.image_registry.client import DEFAULT_PATIENCE, RegistryClient
from shunter.image_registry.image_manifest import (
    GZIP_LAYERS,
    OCI_MANIFEST,
    RegistryImage,
    digest_of,
    encode_config,
    is_foreign,
    read_image,
)
from shunter.parallel import for_all
from shunter.progress import Progress, Silent

THREADS = 4
BASE_NAME = "org.opencontainers.image.base.name"
BASE_DIGEST = "org.opencontainers.image.base.digest"


@dataclass(frozen=True)
class LayerFile:
    """A layer in a file, compressed by gzip.

    Attributes:
        path: the file.
        diff_id: ``sha256:...`` of the uncompressed tar.
        digest: ``sha256:...`` of the file.
        size: of the file, in bytes.
    """

    path: str
    diff_id: str
    digest: str
    size: int


def append_layer(
    base: Reference,
    target: Reference,
    layers: Sequence[LayerFile],
    configure: Callable[[dict[str, Any]], dict[str, Any]],
    platform: str | None = None,
    progress: Progress | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    patience: float = DEFAULT_PATIENCE,
    clients: Callable[[str], RegistryClient] | None = None,
) -> str:
    """Push an image: the base's with layers on top.

    The base's own layers are mounted within a registry, and streamed from one registry to another. The
    manifest comes last: until then nothing can be pulled, and a failure leaves nothing that can.

    Args:
        base: the image to build on.
        target: where to; its tag, if it has one, is set too.
        layers: what comes on top, the lowest first.
        configure: gets the base's configuration and returns the new one, with ``rootfs.diff_ids`` of the
            new layers.
        platform: which of several images of the base; this machine's by default.
        progress: receives how far it is.
        environ: the environment, that of the process by default.
        patience: seconds for which a registry may be away.
        clients: makes the client for a registry.

    Returns:
        The image, pinned: ``registry/repository@sha256:...``.

    Raises:
        ConfigError: the base is missing or unusable, or would be replaced by the new image.
        RegistryError: a registry refuses, or cannot be reached.
    """
    if base.name == target.name and target.tag is not None and target.tag == base.selector:
        raise ConfigError(
            f"the image {base} would be replaced by the one that is built on it",
            hint="Give the new one another repository, or another tag.",
        )
    told = progress or Silent()

    def client(registry: str) -> RegistryClient:
        return RegistryClient(registry, environ=environ, patience=patience, progress=told)

    source = (clients or client)(base.registry)
    destination = source if base.registry == target.registry else (clients or client)(target.registry)
    try:
        return _Append(source, destination, base, target, told).run(layers, configure, platform)
    finally:
        source.close()
        destination.close()


class _Append:
    def __init__(
        self,
        source: RegistryClient,
        destination: RegistryClient,
        base: Reference,
        target: Reference,
        progress: Progress,
    ) -> None:
        self._source = source
        self._destination = destination
        self._base = base
        self._target = target
        self._progress = progress
        same = source is destination
        self._mount_from = base.repository if same and base.repository != target.repository else ""

    def run(
        self,
        layers: Sequence[LayerFile],
        configure: Callable[[dict[str, Any]], dict[str, Any]],
        platform: str | None,
    ) -> str:
        self._progress.step(f"reading {self._base}")
        image = read_image(self._source, self._base, platform)
        config = configure(json.loads(json.dumps(image.config)))
        _check(image, layers, config)
        body = encode_config(config)
        manifest = self._manifest(image, layers, body)
        self._progress.step(f"pushing to {self._target.name}")
        self._send_all(image, layers)
        self._destination.upload_blob(self._target.repository, body, digest_of(body), len(body))
        digest = digest_of(manifest)
        selector = self._target.tag or digest
        self._destination.put_manifest(self._target.repository, selector, manifest, image.media_type)
        pinned = str(self._target.pinned(digest))
        self._progress.done(f"pushed {pinned}")
        return pinned

    def _manifest(self, image: RegistryImage, layers: Sequence[LayerFile], config: bytes) -> bytes:
        document: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": image.media_type,
            "config": {
                "mediaType": image.manifest["config"]["mediaType"],
                "digest": digest_of(config),
                "size": len(config),
            },
            "layers": [
                *image.manifest["layers"],
                *(
                    {
                        "mediaType": GZIP_LAYERS[image.media_type],
                        "digest": layer.digest,
                        "size": layer.size,
                    }
                    for layer in layers
                ),
            ],
        }
        if image.media_type == OCI_MANIFEST:
            named = self._base.name + (f":{self._base.tag}" if self._base.tag else "")
            document["annotations"] = {
                **(image.manifest.get("annotations") or {}),
                BASE_NAME: named,
                BASE_DIGEST: image.selected_digest,
            }
        return json.dumps(document, separators=(",", ":")).encode()

    def _send_all(self, image: RegistryImage, layers: Sequence[LayerFile]) -> None:
        """Send what comes on top, and the base's layers, a few at a time. The first failure ends the rest."""
        blobs: list[LayerFile | dict[str, Any]] = [*layers]
        if self._source is not self._destination or self._mount_from:  # the target has not got the base
            base = image.manifest["layers"]
            own = {layer["digest"]: layer for layer in base if not is_foreign(str(layer.get("mediaType")))}
            blobs += own.values()
        for_all(self._send, blobs, workers=THREADS, on_failure=self._abort)

    def _abort(self) -> None:
        self._source.abort()
        self._destination.abort()

    def _send(self, blob: LayerFile | dict[str, Any]) -> None:
        """Send one of our layers, or one of the base's."""
        repository, progress = self._target.repository, self._progress
        if isinstance(blob, LayerFile):
            self._destination.upload_blob(
                repository, blob.path, blob.digest, blob.size, progress, label="workspace"
            )
            return
        digest = blob["digest"]
        self._destination.upload_blob(
            repository,
            lambda: self._source.open_blob(self._base.repository, digest),
            digest,
            blob["size"],
            progress,
            mount_from=self._mount_from,
        )


def _check(image: RegistryImage, layers: Sequence[LayerFile], config: dict[str, Any]) -> None:
    """Refuse an image with unequal numbers of layers in configuration and manifest: no runtime starts it."""
    wanted = [*image.config["rootfs"]["diff_ids"], *(layer.diff_id for layer in layers)]
    if config.get("rootfs", {}).get("diff_ids") != wanted:
        raise ValueError("configure() did not put exactly the new layers on top of the base's")
    if len(wanted) != len(image.manifest["layers"]) + len(layers):
        raise ConfigError(
            f"the image {image.reference} is damaged: its configuration and its manifest do not have"
            " the same number of layers"
        )
