"""Small images, put into a registry without Docker."""

from __future__ import annotations

import copy
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shunter.image_registry.client import RegistryClient
from shunter.image_registry.image_manifest import (
    DOCKER_CONFIG,
    DOCKER_LAYER,
    DOCKER_LIST,
    DOCKER_MANIFEST,
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_MANIFEST,
    own_platform,
    read_image,
)
from shunter.image_registry.push import LayerFile, push_layers
from shunter.progress import Silent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TYPES = {
    "docker": (DOCKER_MANIFEST, DOCKER_CONFIG, f"{DOCKER_LAYER}.gzip", DOCKER_LIST),
    "oci": (OCI_MANIFEST, OCI_CONFIG, f"{OCI_LAYER}+gzip", OCI_INDEX),
}


def sha256(content: bytes) -> str:
    """Return a digest as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """Return a tar of programs, all of them executable."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def busybox() -> dict[str, bytes]:
    """Return the files of an image that has a shell."""
    return {"bin/sh": Path("/bin/busybox").read_bytes()}


def layer_file(folder: Path, files: Mapping[str, bytes], name: str = "layer") -> LayerFile:
    """Write a layer into a file."""
    tar = tar_of(files)
    packed = gzip.compress(tar, 1, mtime=0)
    path = folder / f"{name}.tar.gz"
    path.write_bytes(packed)
    return LayerFile(str(path), sha256(tar), sha256(packed), len(packed))


def push_image(
    client: RegistryClient,
    repository: str,
    tag: str,
    layers: Sequence[Mapping[str, bytes]],
    *,
    kind: str = "docker",
    platform: str = "",
    extra_layers: Sequence[dict[str, Any]] = (),
) -> str:
    """Put an image there, and return the digest of its manifest."""
    manifest_type, config_type, layer_type, _ = _TYPES[kind]
    tars = [tar_of(files) for files in layers]
    packed = [gzip.compress(tar, 1, mtime=0) for tar in tars]
    system, _, architecture = (platform or own_platform()).partition("/")
    config = json.dumps(
        {
            "architecture": architecture,
            "os": system,
            "config": {"Env": ["PATH=/bin"], "Labels": {"from": "base"}},
            "rootfs": {
                "type": "layers",
                "diff_ids": [sha256(tar) for tar in tars] + [sha256(b"foreign")] * len(extra_layers),
            },
        }
    ).encode()
    for blob in [*packed, config]:
        client.upload_blob(repository, blob, sha256(blob), len(blob))
    document = {
        "schemaVersion": 2,
        "mediaType": manifest_type,
        "config": {"mediaType": config_type, "digest": sha256(config), "size": len(config)},
        "layers": [
            *({"mediaType": layer_type, "digest": sha256(blob), "size": len(blob)} for blob in packed),
            *extra_layers,
        ],
    }
    return client.put_manifest(repository, tag, json.dumps(document).encode(), manifest_type)


def push_index(
    client: RegistryClient, repository: str, tag: str, digests: Mapping[str, str], kind: str = "oci"
) -> str:
    """Put a list of images for several platforms there, and return its digest."""
    entries = []
    for platform, digest in digests.items():
        found = client.manifest(repository, digest)
        assert found is not None
        system, architecture, *variant = platform.split("/")
        has = {"os": system, "architecture": architecture, **({"variant": variant[0]} if variant else {})}
        entries.append(
            {"mediaType": found.media_type, "digest": digest, "size": len(found.body), "platform": has}
        )
    media_type = _TYPES[kind][3]
    document = {"schemaVersion": 2, "mediaType": media_type, "manifests": entries}
    return client.put_manifest(repository, tag, json.dumps(document).encode(), media_type)


def with_layer(layer: LayerFile, label: str = "shipped") -> Any:
    """Return what `append_layer` calls to make the new configuration."""

    def configure(config: dict[str, Any]) -> dict[str, Any]:
        config["rootfs"]["diff_ids"].append(layer.diff_id)
        # Docker writes null for what there is none of
        config["config"]["Labels"] = {**(config["config"].get("Labels") or {}), "ours": label}
        return config

    return configure


def append_layer(base, target, layers, configure, platform=None, progress=None, *, patience=90, clients=None):
    """Push an image of a registry with layers on top; ``configure`` changes its configuration."""
    told = progress or Silent()
    make = clients or (lambda host: RegistryClient(host, patience=patience, progress=told))
    source = make(base.registry)
    destination = source if base.registry == target.registry else make(target.registry)
    try:
        image = read_image(source, base, platform)
        config = configure(copy.deepcopy(image.config))
        return push_layers(source, destination, image, target, layers, config, told)
    finally:
        source.close()
        destination.close()
