"""Images in registries, without a Docker daemon: the OCI distribution API.

Names are loaded when they are first used: whoever only reads the name of an image needs no HTTP.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.workspace.registry.append import LayerFile, append_layer, encode_config
    from trainyard.workspace.registry.client import ManifestDocument, RegistryClient
    from trainyard.workspace.registry.errors import (
        ContentMismatchError,
        RegistryAuthError,
        RegistryError,
        RegistryUnavailableError,
    )
    from trainyard.workspace.registry.image import RegistryImage, own_platform, read_image
    from trainyard.workspace.registry.reference import Reference, image_problem

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
    "image_problem",
    "own_platform",
    "read_image",
]

_HOMES = {
    "append": ("LayerFile", "append_layer", "encode_config"),
    "client": ("ManifestDocument", "RegistryClient"),
    "errors": ("ContentMismatchError", "RegistryAuthError", "RegistryError", "RegistryUnavailableError"),
    "image": ("RegistryImage", "own_platform", "read_image"),
    "reference": ("Reference", "image_problem"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value
