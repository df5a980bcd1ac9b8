"""Overlays: parts of a scheduler's request that `AppDef` and `Role` cannot express.

An overlay has the form of the request. It is kept in the metadata of a role or job, under the scheduler's
name, and is applied when the request is made: dicts are merged, lists are appended, a tuple replaces a list,
None removes a field, and everything else is replaced. Three operators, used as keys, change this::

    {"spec": {
        PUT("tolerations"): [...],                         # this list, instead of ours and this one
        JOIN("containers", on="name"): [{"name": "trainer", "tty": True}],   # into the item of this name
        DEL("terminationGracePeriodSeconds"): None,        # not at all
    }}

They are texts (``__put__:KEY``, ``__join__:KEY:FIELD``, ``__del__:KEY``), as in TorchX, so that YAML files
can hold them too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from shunter.errors import ConfigError

# the operators, as prefixes of keys
REPLACE, MERGE_ITEMS, REMOVE = "__put__:", "__join__:", "__del__:"


def PUT(key: str) -> str:  # noqa: N802 - the name that TorchX gave it
    """Return the key under which an overlay replaces a list or dict instead of adding to it."""
    return f"{REPLACE}{key}"


def JOIN(key: str, *, on: str) -> str:  # noqa: N802
    """Return the key under which an overlay's items are merged into those that have the same ``on``.

    Items that are not there yet are appended.
    """
    return f"{MERGE_ITEMS}{key}:{on}"


def DEL(key: str) -> str:  # noqa: N802
    """Return the key under which an overlay removes a field; its value does not matter."""
    return f"{REMOVE}{key}"


def split_key(key: str) -> tuple[str, str, str]:
    """Return the operator of a key ("" without one), the plain key, and the field of a JOIN."""
    if key.startswith(MERGE_ITEMS):
        name, _, on = key.removeprefix(MERGE_ITEMS).rpartition(":")
        return MERGE_ITEMS, name, on
    for prefix in (REPLACE, REMOVE):
        if key.startswith(prefix):
            return prefix, key.removeprefix(prefix), ""
    return "", key, ""


def plain_keys(overlay: Mapping[str, Any]) -> list[str]:
    """Return an overlay's keys without operators."""
    return [split_key(str(key))[1] for key in overlay]


def apply_overlay(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request with an overlay laid over it; neither of the two is changed.

    Raises:
        ConfigError: JOIN is applied to something other than a list of dicts, or an item lacks its field.
    """
    merged = dict(base)
    for key, value in overlay.items():
        operator, name, on = split_key(key)
        before = merged.get(name)
        if operator == REMOVE or value is None:
            merged.pop(name, None)
        elif operator == MERGE_ITEMS:
            merged[name] = _joined(name, on, before or [], value)
        elif operator == REPLACE or isinstance(value, tuple):
            merged[name] = _plain(value)
        elif isinstance(value, dict) and isinstance(before, Mapping):
            merged[name] = apply_overlay(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            merged[name] = [*before, *(_plain(item) for item in value)]
        else:
            merged[name] = _plain(value)
    return merged


def _joined(name: str, on: str, base: Any, items: Any) -> list[Any]:
    for side, dicts in (("the request", base), ("the overlay", items)):
        if not isinstance(dicts, (list, tuple)) or not all(isinstance(item, Mapping) for item in dicts):
            raise ConfigError(f"overlay: JOIN({name!r}, on={on!r}): {side} needs a list of dicts there")
    merged = list(base)
    for item in items:
        if on not in item:
            raise ConfigError(f"overlay: JOIN({name!r}, on={on!r}): an item has no {on!r}")
        index = next((i for i, other in enumerate(merged) if other.get(on) == item[on]), None)
        if index is None:
            merged.append(_plain(item))
        else:
            merged[index] = apply_overlay(merged[index], item)
    return merged


def _plain(value: Any) -> Any:
    """Return what an overlay adds where there was nothing: without operators, None and tuples."""
    if isinstance(value, Mapping):
        return apply_overlay({}, value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return copy.deepcopy(value)


def operators_in(overlay: Any, path: str = "") -> Iterator[str]:
    """Yield what is wrong with the operators of an overlay."""
    if isinstance(overlay, Mapping):
        seen: dict[str, str] = {}
        for key, value in overlay.items():
            operator, name, on = split_key(str(key))
            where = f"{path}.{name}" if path else name
            if not name or (operator == MERGE_ITEMS and not on):
                yield f"{key!r} is not complete: an operator has a key, and JOIN a field too"
            if name in seen:
                yield f"{where} is there twice: as {seen[name]!r} and as {key!r}"
            seen[name] = str(key)
            yield from operators_in(value, where)
    elif isinstance(overlay, (list, tuple)):
        for item in overlay:
            yield from operators_in(item, path)
