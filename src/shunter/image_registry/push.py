"""Pushing a new image: an existing one with more layers. Nothing of it is kept on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from shunter.docker.image_reference import Reference
from shunter.errors import ConfigError
from shunter.image_registry.client import RegistryClient
from shunter.image_registry.image_manifest import (
    GZIP_LAYERS,
    OCI_MANIFEST,
    RegistryImage,
    digest_of,
    is_foreign,
)
from shunter.parallel import for_all
from shunter.progress import Progress

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


def push_layers(
    source: RegistryClient,
    destination: RegistryClient,
    image: RegistryImage,
    target: Reference,
    layers: Sequence[LayerFile],
    config: dict[str, Any],
    progress: Progress,
) -> str:
    """Push an image: another one with layers on top.

    The base's own layers are mounted within a registry, and streamed from one registry to another. The
    manifest comes last: until then nothing can be pulled, and a failure leaves nothing that can.

    Args:
        source: of the base's registry.
        destination: of the target's registry; ``source`` itself where that is the same.
        image: the base.
        target: where to; its tag, if it has one, is set too.
        layers: what comes on top, the lowest first.
        config: the new image's configuration, with ``rootfs.diff_ids`` of the new layers.
        progress: receives how far it is.

    Returns:
        The image, pinned: ``registry/repository@sha256:...``.

    Raises:
        ConfigError: the base is damaged, or would be replaced by the new image.
        RegistryError: a registry refuses, or cannot be reached.
    """
    base = image.reference
    if base.name == target.name and target.tag is not None and target.tag == base.selector:
        raise ConfigError(
            f"the image {base} would be replaced by the one that is built on it",
            hint="Give the new one another repository, or another tag.",
        )
    if len(image.config["rootfs"]["diff_ids"]) != len(image.manifest["layers"]):
        raise ConfigError(
            f"the image {base} is damaged: its configuration and its manifest do not have the same number"
            " of layers"
        )
    progress.step(f"pushing to {target.name}")
    mount_from = base.repository if source is destination and base.repository != target.repository else ""
    put = partial(destination.upload_blob, target.repository)
    uploads: list[Callable[[], object]] = [
        partial(put, layer.path, layer.digest, layer.size, progress, label="workspace") for layer in layers
    ]
    if source is not destination or mount_from:  # the target has not got the base
        own = [layer for layer in image.manifest["layers"] if not is_foreign(str(layer.get("mediaType")))]
        for digest, size in {layer["digest"]: layer["size"] for layer in own}.items():
            blob = partial(source.open_blob, base.repository, digest)
            uploads.append(partial(put, blob, digest, size, progress, mount_from=mount_from))

    def abort() -> None:
        source.abort()
        destination.abort()

    for_all(lambda upload: upload(), uploads, workers=THREADS, on_failure=abort)
    body = json.dumps(config, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    destination.upload_blob(target.repository, body, digest_of(body), len(body))
    manifest = _manifest(image, layers, body)
    digest = digest_of(manifest)
    destination.put_manifest(target.repository, target.tag or digest, manifest, image.media_type)
    pinned = str(target.pinned(digest))
    progress.done(f"pushed {pinned}")
    return pinned


def _manifest(image: RegistryImage, layers: Sequence[LayerFile], config: bytes) -> bytes:
    media_type, base = GZIP_LAYERS[image.media_type], image.reference
    new = [{"mediaType": media_type, "digest": layer.digest, "size": layer.size} for layer in layers]
    document: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": image.media_type,
        "config": {
            "mediaType": image.manifest["config"]["mediaType"],
            "digest": digest_of(config),
            "size": len(config),
        },
        "layers": [*image.manifest["layers"], *new],
    }
    if image.media_type == OCI_MANIFEST:
        document["annotations"] = {
            **(image.manifest.get("annotations") or {}),
            BASE_NAME: base.name + (f":{base.tag}" if base.tag else ""),
            BASE_DIGEST: image.selected_digest,
        }
    return json.dumps(document, separators=(",", ":")).encode()
