"""Prints the public names and signatures of modules as JSON, in the predecessor's environment or in ours.

Usage: ``python surface.py [--aliases] MODULE ...``
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import sys
import types
from typing import Any


def parameters(item: Any) -> list[list[str]] | None:
    """(name, kind, default) of each parameter; None where there is no signature."""
    try:
        found = inspect.signature(item).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[p.name, p.kind.name, "" if p.default is p.empty else "default"] for p in found]


def members(item: type) -> dict[str, Any]:
    """What a class itself defines: parameters of methods, "property" for properties."""
    own = {name: value for name, value in inspect.getmembers_static(item) if not name.startswith("_")}
    inherited = {name for base in (Exception, tuple, enum.Enum) for name in dir(base)}
    return {
        name: "property" if isinstance(value, property) else parameters(getattr(item, name, None))
        for name, value in own.items()
        if name not in {*inherited, "name", "value"}
    }


def surface(name: str) -> dict[str, Any]:
    """What the module offers: ``{"name": {"kind", "parameters", "members"}}``."""
    module = importlib.import_module(name)
    offered: dict[str, Any] = {}
    for attribute, value in vars(module).items():
        elsewhere = getattr(value, "__module__", name)
        foreign = isinstance(value, types.ModuleType) or elsewhere == "__future__"
        if attribute.startswith("_") or foreign or not elsewhere.startswith(name.split(".")[0]):
            continue
        offered[attribute] = describe(value)
    return offered


def describe(value: Any) -> dict[str, Any]:
    """One name of a module."""
    if inspect.isclass(value):
        return {"kind": "class", "parameters": parameters(value), "members": members(value)}
    if callable(value):
        return {"kind": "function", "parameters": parameters(value)}
    return {"kind": type(value).__name__, "value": json.loads(json.dumps(value, default=str))}


def main() -> None:
    """Print what each module offers; with ``--aliases`` only what is asked for on stdin."""
    modules = sys.argv[1:]
    if modules[0] == "--aliases":
        from shunter_toolkit import aliases

        aliases.install()
        wanted = json.load(sys.stdin)
        result = {
            name: {a: describe(getattr(importlib.import_module(name), a, None)) for a in attributes}
            for name, attributes in wanted.items()
        }
    else:
        result = {name: surface(name) for name in modules}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
