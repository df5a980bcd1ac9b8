"""The pod overlay of a role, ``metadata["kubernetes"]``: what its author wants in the pod beside what we
write.

As in TorchX: dicts are merged, lists are appended, tuples replace a list, everything else is replaced; None
removes. The overlay is a dict in the form of a pod (``{"spec": {"nodeSelector": {...}}}``), or the
``file://`` URI of a YAML or JSON file with one.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from typing import Any

from trainyard.errors import ConfigError

METADATA_KEY = "kubernetes"
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
    wrong = sorted(str(key) for key in found if key not in _PARTS)
    if wrong:
        raise ConfigError(
            f"role {role!r}: metadata[{METADATA_KEY!r}] has {', '.join(map(repr, wrong))}, which a "
            "pod has not",
            hint='It has the form of a pod: {"metadata": {...}, "spec": {...}}.',
        )
    return found


def _read(uri: str, role: str) -> Any:
    if not uri.startswith("file://"):
        raise ConfigError(
            f"role {role!r}: the pod overlay {uri!r} is not a file:// URI",
            hint="Write file:///absolute/path.yaml, or the overlay itself as a dict.",
        )
    path = os.path.expanduser(uri.removeprefix("file://"))
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise ConfigError(f"role {role!r}: cannot read the pod overlay {path}: {error.strerror}") from None
    try:
        return json.loads(text)
    except ValueError:
        return _yaml(text, path)


def _yaml(text: str, path: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ConfigError(
            f"the pod overlay {path} is not JSON, and reading YAML needs a package that is not installed",
            hint="Install it: pip install 'trainyard[kubernetes]'",
        ) from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the pod overlay {path} is not YAML: {error}") from None


def apply(base: dict[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest with an overlay applied; neither of the two is changed."""
    merged = dict(base)
    for key, value in overlay.items():
        there = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(there, dict):
            merged[key] = apply(there, value)
        elif isinstance(value, tuple):
            merged[key] = copy.deepcopy(list(value))
        elif isinstance(value, list) and isinstance(there, list):
            merged[key] = [*there, *copy.deepcopy(value)]
        else:
            merged[key] = _plain(value)
    return merged


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
