"""TorchX's functions for overlays of requests (``torchx.specs.overlays``); they are kept in metadata.

The operators, and what they mean, are those of `shunter.specs.overlays`.
"""

from __future__ import annotations

import copy
from typing import Any

from shunter.specs import overlays
from shunter.specs.overlays import DEL, JOIN, PUT, REPLACE, split_key

__all__ = ["DEL", "JOIN", "PUT", "apply_overlay", "get_overlay", "set_overlay"]


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
    _add(target.metadata[namespace].setdefault(kind, {}), overlay)


def get_overlay(target: Any, namespace: str, kind: str, *, flat_fallback: bool = True) -> dict[str, Any]:
    """Return a copy of the overlay that `set_overlay` keeps; {} without one.

    Args:
        target, namespace, kind: as for `set_overlay`.
        flat_fallback: whether metadata without kinds, ``{"spec": {...}}``, counts as the overlay.
    """
    kinds = target.metadata.get(namespace)
    if not isinstance(kinds, dict):
        return {}
    has_kinds = len(kinds) > 1 and all(isinstance(overlay, dict) for overlay in kinds.values())
    is_flat = flat_fallback and kind not in kinds and not has_kinds
    return copy.deepcopy(kinds if is_flat else kinds.get(kind, {}))


def apply_overlay(base: dict[str, Any], overlay: dict[str, Any]) -> None:
    """Merge an overlay into a mapping, which is changed.

    Raises:
        ConfigError: an operator does not fit the value that it is applied to.
    """
    merged = overlays.apply_overlay(base, overlay)
    base.clear()
    base.update(merged)


def _add(base: dict[str, Any], overlay: dict[str, Any]) -> None:
    """Merge two overlays without applying operators; the last word on a field wins."""
    for key, value in overlay.items():
        operator, name, _ = split_key(key)
        for other in [known for known in base if known != key and split_key(known)[1] == name]:
            del base[other]
        known = base.get(key)
        if isinstance(known, dict) and isinstance(value, dict) and operator != REPLACE:
            _add(known, value)
        elif isinstance(known, list) and isinstance(value, list) and operator != REPLACE:
            base[key] = [*known, *copy.deepcopy(value)]
        else:
            base[key] = copy.deepcopy(value)
