"""TorchX's functions for overlays, which change mappings in place and raise the built-in exceptions.

The operators, and what they mean, are those of `shunter.specs.overlays`. Here None is a value like others.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Collection
from typing import Any

from shunter.errors import ConfigError
from shunter.specs.overlays import DEL, JOIN, MERGE_ITEMS, PUT, REMOVE, REPLACE, split_key

__all__ = ["DEL", "JOIN", "PUT", "apply_overlay", "get_overlay", "logger", "set_overlay", "validate_overlay"]

logger = logging.getLogger(__name__)


def set_overlay(target: Any, namespace: str, kind: str, overlay: dict[str, Any]) -> None:
    """Keep an overlay in the metadata of a role or job; several for one kind add up.

    Args:
        target: the role or job.
        namespace: the scheduler.
        kind: the kind of object in its request, such as ``V1Pod``.
        overlay: the fields.
    """
    if not isinstance(target.metadata.get(namespace), dict):
        target.metadata[namespace] = {}
    kinds = target.metadata[namespace]
    apply_overlay(kinds.setdefault(kind, {}), overlay, _resolve=False)


def get_overlay(target: Any, namespace: str, kind: str) -> dict[str, Any]:
    """Return the overlay that `set_overlay` keeps; {} without one. A text names a file in JSON or YAML.

    Raises:
        ConfigError: the file does not hold a mapping (a `ValueError`).
    """
    kept: Any = target.metadata.get(namespace, {})
    if isinstance(kept, str):
        uri, kept = kept, _read(kept)
        if not isinstance(kept, dict):
            raise ConfigError(f"the overlay {uri} holds a {type(kept).__name__}, but an overlay is a mapping")
    if not isinstance(kept, dict):
        return {}
    if kind in kept:
        return dict(kept[kind])
    return {} if _is_by_kind(kept) else dict(kept)


def _is_by_kind(kept: dict[str, Any]) -> bool:
    """Tell whether overlays are stored by kind, such as ``V1Pod``, rather than as a single overlay."""
    return all(key[:1].isupper() and isinstance(value, dict) for key, value in kept.items())


def apply_overlay(base: dict[str, Any], overlay: dict[str, Any], *, _resolve: bool = True) -> None:
    """Merge an overlay into a mapping, which is changed.

    Raises:
        TypeError: a value and the one that it would be merged into have different types.
    """
    for key, value in overlay.items():
        operator, name, on = split_key(key)
        for other in [each for each in base if each != key and split_key(each)[1] == name]:
            if other != name or not _resolve:
                del base[other]  # the last word on a field wins
        if operator and not _resolve:
            adds = operator == MERGE_ITEMS and isinstance(base.get(key), list)
            base[key] = [*base[key], *copy.deepcopy(value)] if adds else copy.deepcopy(value)
        elif operator == REMOVE:
            base.pop(name, None)
        elif operator == REPLACE:
            base[name] = copy.deepcopy(value)
        elif operator == MERGE_ITEMS:
            base[name] = _joined(name, base.get(name) or [], value, on)
        else:
            base[key] = (
                _merged(key, base[key], value, resolve=_resolve)
                if key in base
                else _resolved(value, _resolve)
            )


def validate_overlay(
    overlay: dict[str, Any],
    *,
    blocklist: Collection[str] | None = None,
    forbidden_keys: set[str] | None = None,
    overlay_name: str = "overlay",
    suggestion: str = "",
) -> None:
    """Refuse an overlay that sets fields that it may not set.

    Args:
        overlay: the fields.
        blocklist: those that a role sets.
        forbidden_keys: those that belong to another kind of overlay.
        overlay_name: what the overlay is called in the message.
        suggestion: what to do about forbidden ones.

    Raises:
        ValueError: it has one of them.
    """
    names = {split_key(key)[1] for key in overlay}
    set_by_role = sorted(names & set(blocklist or ()))
    if set_by_role:
        fields = ", ".join(f"{overlay_name}.{name}" for name in set_by_role)
        raise ValueError(f"an overlay cannot set {fields}: set it on the role")
    misplaced = sorted(names & set(forbidden_keys or ()))
    if misplaced:
        raise ValueError(f"{', '.join(misplaced)} cannot be part of {overlay_name}. {suggestion}".rstrip())


def _merged(name: str, old: Any, new: Any, *, resolve: bool) -> Any:
    if isinstance(new, tuple):  # stands for PUT
        return _resolved(new, resolve)
    if isinstance(old, tuple) and isinstance(new, list):
        return (*old, *copy.deepcopy(new))
    if old is None or new is None:
        return _resolved(new, resolve)
    either = (isinstance(old, (dict, list)), isinstance(new, (dict, list)))
    if any(either) and type(old) is not type(new):
        raise TypeError(f"the overlay of {name} is a {type(new).__name__}, but it is a {type(old).__name__}")
    if isinstance(old, dict):
        apply_overlay(old, new, _resolve=resolve)
        return old
    return [*old, *copy.deepcopy(new)] if isinstance(old, list) else copy.deepcopy(new)


def _resolved(value: Any, resolve: bool) -> Any:
    if resolve and isinstance(value, tuple):
        return copy.deepcopy([*value])
    if not (resolve and isinstance(value, dict)):
        return copy.deepcopy(value)
    made: dict[str, Any] = {}
    apply_overlay(made, value)
    return made


def _joined(name: str, old: Any, new: list[dict[str, Any]], on: str) -> list[dict[str, Any]]:
    for given in (old, new):
        if not isinstance(given, (list, tuple)) or not all(isinstance(item, dict) for item in given):
            raise TypeError(f"{name} is not a list of mappings, so its items cannot be joined on {on}")
    items = list(old)
    for item in new:
        same = next((each for each in items if on in item and each.get(on) == item[on]), None)
        if same is None:
            items.append(copy.deepcopy(item))
        else:
            apply_overlay(same, item)
    return items


def _read(uri: str) -> Any:
    if uri.startswith("file://") or "://" not in uri:
        with open(uri.removeprefix("file://"), encoding="utf-8") as file:
            text = file.read()
    else:
        import fsspec

        with fsspec.open(uri, "r") as file:
            text = file.read()
    try:
        return json.loads(text)
    except ValueError:
        import yaml

        loader_of_tuples: Any = type("Loader", (yaml.SafeLoader,), {})
        loader_of_tuples.add_constructor(  # which replace a list
            "tag:yaml.org,2002:python/tuple",
            lambda loader, node: tuple(loader.construct_sequence(node, deep=True)),
        )
        return yaml.load(text, loader_of_tuples)
