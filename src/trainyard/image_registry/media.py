"""Media types of images, of Docker's kind and OCI's.

https://github.com/opencontainers/image-spec/blob/main/media-types.md and
https://distribution.github.io/distribution/spec/manifest-v2-2/
"""

from __future__ import annotations

from trainyard.errors import ConfigError

DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"

MANIFEST_TYPES = (OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST)
LISTS = frozenset({DOCKER_LIST, OCI_INDEX})
IMAGES = frozenset({DOCKER_MANIFEST, OCI_MANIFEST})
CONFIGS = frozenset({DOCKER_CONFIG, OCI_CONFIG})

_LAYERS = {
    DOCKER_MANIFEST: {"tar": DOCKER_LAYER, "gzip": f"{DOCKER_LAYER}.gzip"},
    OCI_MANIFEST: {"tar": OCI_LAYER, "gzip": f"{OCI_LAYER}+gzip", "zstd": f"{OCI_LAYER}+zstd"},
}


def is_foreign(media_type: str) -> bool:
    """Tell whether a layer is not to be distributed, but fetched from its URLs."""
    return ".foreign." in media_type or ".nondistributable." in media_type


def layer_type(media_type: str, manifest_type: str) -> str:
    """Return the media type that a layer has in a manifest of another kind.

    Raises:
        ConfigError: a manifest of this kind has no such layers.
    """
    name = media_type.rpartition(".")[2] if media_type.endswith(".gzip") else media_type.rpartition("+")[2]
    compression = name if name in ("gzip", "zstd") else "tar"
    if compression not in _LAYERS[manifest_type]:
        raise ConfigError(
            f"the base image is of Docker's kind (schema 2), which knows no layers of {compression}",
            hint="Use a layer compressed with gzip.",
        )
    return _LAYERS[manifest_type][compression]
