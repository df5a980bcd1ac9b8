"""The pod overlay of a role, ``metadata["kubernetes"]``: fields that its author adds to our pod.

It is a dict in the form of a pod (``{"spec": {"nodeSelector": {...}}}``), or the URI of a YAML or JSON file
with one (``file://``, or what fsspec reads). How it is applied, and which operators it may have:
`shunter.specs.overlays`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from shunter.errors import ConfigError
from shunter.paths import read_regular_file
from shunter.specs.overlays import operators_in, plain_keys

METADATA_KEY = "kubernetes"
POD = "V1Pod"
_PARTS = ("metadata", "spec")


def overlay_of(metadata: Mapping[str, Any], role: str) -> dict[str, Any]:
    """Return the overlay in a role's metadata; empty without one.

    Raises:
        ConfigError: it is not one, or its file cannot be read.
    """
    overlay = metadata.get(METADATA_KEY)
    if overlay is None:
        return {}
    where = f"role {role!r}: metadata[{METADATA_KEY!r}]"
    if isinstance(overlay, str):
        try:
            overlay = _read(overlay)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{where}: reading {overlay} needs the package {error.name!r}, which is not installed",
                hint="Install it: pip install 'shunter[kubernetes]' (for s3:// pip install fsspec s3fs).",
            ) from None
        except Exception as error:  # whatever YAML or the file system raises
            raise ConfigError(f"{where}: cannot read the pod overlay {overlay}: {error}") from None
    if not isinstance(overlay, dict):
        raise ConfigError(f"{where} must be a dict, or file:// and a path")
    if set(overlay) == {POD}:  # TorchX names the type of the request too
        overlay = overlay[POD]
    unknown = sorted(key for key in plain_keys(overlay) if key not in _PARTS)
    if unknown:
        raise ConfigError(
            f"{where} has {', '.join(map(repr, unknown))}, which pods do not have",
            hint='It has the form of a pod: {"metadata": {...}, "spec": {...}}.',
        )
    problems = list(operators_in(overlay))
    if problems:
        raise ConfigError(f"{where}: {'; '.join(problems)}")
    return overlay


def _read(uri: str) -> Any:
    """Read a YAML file, as which JSON counts too; from elsewhere, such as S3, by fsspec, as TorchX does."""
    import yaml

    scheme, separator, path = uri.partition("://")
    if not separator:
        raise ValueError("it is not a URI, such as file:///absolute/path.yaml")
    if scheme == "file":
        text = read_regular_file(os.path.expanduser(path)).decode()
    else:
        import fsspec

        with fsspec.open(uri, "r") as file:
            text = file.read()

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Also knows tuples, which replace a list, as TorchX's users write them."""

    Loader.add_constructor(
        "tag:yaml.org,2002:python/tuple",
        lambda loader, node: tuple(loader.construct_sequence(node, deep=True)),
    )
    return yaml.load(text, Loader)
