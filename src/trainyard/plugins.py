"""Plugins: entry points of installed distributions, for trainyard or for its predecessor.

The groups are ``trainyard.<kind>`` and ``torchx.<kind>`` (schedulers, components, named_resources, events,
cmds, ...). Entry points are read from ``entry_points.txt`` directly, since importing `importlib.metadata`
takes some 40 ms.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib import import_module

from trainyard.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PREFIXES = ("trainyard", "torchx")


class EntryPoint:
    """A name and the object that a distribution offers under it."""

    def __init__(self, group: str, name: str, value: str) -> None:
        self.group = group
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return f"EntryPoint({self.group}: {self.name} = {self.value})"

    def load(self) -> Any:
        """Import the module and return the object.

        Raises:
            ConfigError: the import fails; the message names the plugin.
        """
        module, _, attribute = self.value.partition(":")
        if self.group.startswith("torchx"):
            from trainyard import torchx_alias

            torchx_alias.install()  # which the module imports, most likely
        try:
            target: Any = import_module(module.strip())
            for part in filter(None, attribute.strip().split(".")):
                target = getattr(target, part)
        except Exception as error:
            raise ConfigError(
                f"the plugin {self.name!r} ({self.group} = {self.value}) cannot be loaded: "
                f"{type(error).__name__}: {error}",
                hint="Repair or uninstall the distribution that provides it.",
            ) from error
        return target


def entry_points(kind: str) -> list[EntryPoint]:
    """Return the entry points of a kind; of several with one name the first, trainyard before torchx."""
    found: dict[str, EntryPoint] = {}
    for prefix in PREFIXES:
        for point in _all_entry_points():
            if point.group == f"{prefix}.{kind}":
                found.setdefault(point.name, point)
    return list(found.values())


@functools.cache
def _all_entry_points() -> tuple[EntryPoint, ...]:
    points: list[EntryPoint] = []
    for directory in dict.fromkeys(sys.path):
        try:
            with os.scandir(directory or ".") as entries:
                infos = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        for info in sorted(infos):
            points += _read(os.path.join(info, "entry_points.txt"))
    return tuple(points)


def _read(path: str) -> list[EntryPoint]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    if not any(f"[{prefix}." in text for prefix in PREFIXES):
        return []
    points, group = [], ""
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif "=" in line and not line.startswith(("#", ";")) and group.startswith(PREFIXES):
            name, _, value = line.partition("=")
            points.append(EntryPoint(group, name.strip(), value.partition("[")[0].strip()))
    return points
