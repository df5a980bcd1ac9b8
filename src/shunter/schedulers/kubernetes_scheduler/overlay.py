"""The pod overlay of a role, ``metadata["kubernetes"]``: fields that its author adds to our pod.

It is a dict in the form of a pod (``{"spec": {"nodeSelector": {...}}}``), or the URI of a YAML or JSON file
with one (``file://``, or what fsspec reads). How it is applied, and which operators it may have:
`shunter.specs.overlays`.
"""

from __future__ import annotations

import json
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
    found = metadata.get(METADATA_KEY)
    if found is None:
        return {}
    if isinstance(found, str):
        found = _read(found, role)
    if not isinstance(found, dict):
        raise ConfigError(f"role {role!r}: metadata[{METADATA_KEY!r}] must be a dict, or file:// and a path")
    if set(found) == {POD}:  # TorchX names the type of the request too
        found = found[POD]
    wrong = sorted(key for key in plain_keys(found) if key not in _PARTS)
    if wrong:
        raise ConfigError(
            f"role {role!r}: metadata[{METADATA_KEY!r}] has {', '.join(map(repr, wrong))}, which "
            "pods do not have",
            hint='It has the form of a pod: {"metadata": {...}, "spec": {...}}.',
        )
    problems = list(operators_in(found))
    if problems:
        raise ConfigError(f"role {role!r}: metadata[{METADATA_KEY!r}]: {'; '.join(problems)}")
    return found


def _read(uri: str, role: str) -> Any:
    scheme, separator, _ = uri.partition("://")
    if not separator:
        raise ConfigError(
            f"role {role!r}: the pod overlay {uri!r} is not a URI",
            hint="Write file:///absolute/path.yaml, or the overlay itself as a dict.",
        )
    if scheme != "file":
        return _yaml(_fetched(uri, role), uri)
    path = os.path.expanduser(uri.removeprefix("file://"))
    try:
        text = read_regular_file(path).decode()
    except OSError as error:
        raise ConfigError(f"role {role!r}: cannot read the pod overlay {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the pod overlay {path} is not UTF-8 text (byte {error.start})") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _yaml(text, path)


def _fetched(uri: str, role: str) -> str:
    """Read a file that is elsewhere, such as in S3, by fsspec, as TorchX does."""
    try:
        import fsspec
    except ModuleNotFoundError:
        raise ConfigError(
            f"role {role!r}: reading the pod overlay {uri} needs a package that is not installed",
            hint="Install it: pip install fsspec (for s3:// s3fs too); or fetch the file, and write file://PATH.",
        ) from None
    try:
        with fsspec.open(uri, "r") as file:
            return str(file.read())
    except Exception as error:  # whatever the file system raises
        raise ConfigError(f"role {role!r}: cannot read the pod overlay {uri}: {error}") from None


def _yaml(text: str, path: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError(
            f"the pod overlay {path} is not JSON, and reading YAML needs a package that is not installed",
            hint="Install it: pip install 'shunter[kubernetes]'",
        ) from None
    try:
        return yaml.load(text, _loader(yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ConfigError(f"the pod overlay {path} is not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"the pod overlay {path} is nested too deeply") from None


def _loader(safe: Any) -> Any:
    """Return a safe loader that also knows tuples, which replace a list, as TorchX's users write them."""

    loader: Any = type("Loader", (safe,), {})  # so that the constructor is not for all
    loader.add_constructor(
        "tag:yaml.org,2002:python/tuple",
        lambda loader, node: tuple(loader.construct_sequence(node, deep=True)),
    )
    return loader
