"""Images in registries, without a Docker daemon: the OCI distribution API."""

from __future__ import annotations

from trainyard.workspace.registry.append import LayerFile, append_layer, encode_config
from trainyard.workspace.registry.client import ManifestDocument, RegistryClient
from trainyard.workspace.registry.errors import (
    ContentMismatchError,
    RegistryAuthError,
    RegistryError,
    RegistryUnavailableError,
)
from trainyard.workspace.registry.image import RegistryImage, own_platform, read_image
from trainyard.workspace.registry.reference import Reference

__all__ = [
    "ContentMismatchError",
    "LayerFile",
    "ManifestDocument",
    "Reference",
    "RegistryAuthError",
    "RegistryClient",
    "RegistryError",
    "RegistryImage",
    "RegistryUnavailableError",
    "append_layer",
    "encode_config",
    "own_platform",
    "read_image",
]
