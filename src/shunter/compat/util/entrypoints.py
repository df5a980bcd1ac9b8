"""What distributions offer in groups of entry points (``torchx.util.entrypoints``)."""

from __future__ import annotations

import importlib.metadata as metadata
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from shunter.plugins import entry_points

T = TypeVar("T")


def load_entry_point(group: str, name: str, default: T | None = None) -> Any:
    """Return what a distribution offers under a name of a group, else the default.

    Raises:
        KeyError: there is none, and no default.
    """
    for point in _points(group):
        if point.name == name:
            return point.load()
    if default is None:
        raise KeyError(f"no distribution offers {name!r} in the group {group!r}")
    return default


def load_group(group: str, default: Mapping[str, Any] | None = None, skip_defaults: bool = False) -> Any:
    """Return what distributions offer in a group, by name, each loaded when it is first called.

    Args:
        group: for example ``torchx.schedulers``.
        default: returned if nothing is offered.
        skip_defaults: return None rather than the default.
    """
    points = _points(group)
    if not points:
        return None if skip_defaults else default
    return {point.name: DeferredEntry(point) for point in points}


def _points(group: str) -> list[Any]:
    kind = group.removeprefix("torchx.")
    if kind != group:
        return entry_points(kind)
    return list(metadata.entry_points(group=group).select(group=group))  # also what a test puts in its place


class DeferredEntry:
    """Stands for a callable, or a module, that is imported when it is used."""

    def __init__(self, point: Any) -> None:
        self._point = point

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; return it if it is a module."""
        loaded = self._point.load()
        return loaded if inspect.ismodule(loaded) else loaded(*args, **kwargs)
