"""Plugins: entry points of installed distributions, for shunter or for TorchX.

The groups are ``shunter.<kind>`` and ``torchx.<kind>`` (schedulers, components, named_resources, events,
cmds, ...).
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from shunter import torchx_alias
from shunter.errors import PluginError, ShunterError

PREFIXES = ("shunter", "torchx")
#: Exceptions that are not the plugin's fault when its code raises them.
INTERRUPTIONS = (KeyboardInterrupt, GeneratorExit)
NAMESPACE = "torchx_plugins"
#: Folders of the packages in which TorchX's 2026 versions look for plugins, by kind.
NAMESPACE_FOLDERS = {"schedulers": "schedulers", "named_resources": "named_resources", "tracker": "trackers"}


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
            PluginError: the import fails; the message names the plugin.
        """
        module, _, attribute = self.value.partition(":")
        if self.group.startswith("torchx"):
            torchx_alias.install()  # which the module imports, most likely
        try:
            target: Any = import_module(module.strip())
            for part in filter(None, attribute.strip().split(".")):
                target = getattr(target, part)
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # SystemExit too
            raise self._error("cannot be loaded", error) from error
        return target

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Load the function, and call it.

        Raises:
            PluginError: the import or the call fails; the message names the plugin.
        """
        function = self.load()
        try:
            return function(*args, **kwargs)
        except (*INTERRUPTIONS, ShunterError):
            raise
        except BaseException as error:  # SystemExit too
            raise self._error("failed", error) from error

    def _error(self, what: str, error: BaseException) -> PluginError:
        return PluginError(
            f"the plugin {self.name!r} ({self.group} = {self.value}) {what}: {type(error).__name__}: {error}",
            hint="Repair or uninstall the distribution that provides it.",
        )


class NamespacePlugin(EntryPoint):
    """A function that a module in a ``torchx_plugins.*`` package registers by a decorator."""

    def __init__(self, group: str, name: str, function: Any) -> None:
        super().__init__(group, name, f"{function.__module__}:{function.__name__}")
        self._function = function

    def load(self) -> Any:
        """Return the function."""
        return self._function


def entry_points(kind: str) -> list[EntryPoint]:
    """Return the plugins of a kind; of several with one name the first, shunter before torchx.

    Those of ``torchx_plugins.*`` packages come last. One that cannot be imported is reported by a warning.
    """
    plugins: dict[str, EntryPoint] = {}
    for point in installed(kind):
        plugins.setdefault(point.name, point)
    if kind in NAMESPACE_FOLDERS:
        errors: list[tuple[str, str]] = []
        for plugin in namespace_plugins(kind, errors):
            plugins.setdefault(plugin.name, plugin)
        _warn(errors)
    return list(plugins.values())


def installed(kind: str) -> list[EntryPoint]:
    """Return the entry points of a kind, all of each name. Nothing is imported for it."""
    return [point for prefix in PREFIXES for point in _entry_points_of_group(f"{prefix}.{kind}")]


def namespace_plugins(kind: str, errors: list[tuple[str, str]]) -> list[NamespacePlugin]:
    """Import the modules of ``torchx_plugins.<kind>``, and return the plugins that they register.

    Args:
        kind: a key of `NAMESPACE_FOLDERS`.
        errors: receives the name of each module that cannot be imported, and why.
    """
    package = f"{NAMESPACE}.{NAMESPACE_FOLDERS[kind]}"
    plugins: list[NamespacePlugin] = []
    for module in _namespace_modules(NAMESPACE_FOLDERS[kind]):
        torchx_alias.install()  # from which the decorator is imported
        try:
            functions = vars(import_module(f"{package}.{module}")).values()
        except INTERRUPTIONS:
            raise
        except BaseException as error:  # SystemExit too
            errors.append((f"{package}.{module}", f"{type(error).__name__}: {error}"))
            continue
        for function in functions:
            if getattr(getattr(function, "_plugin_type", None), "value", None) == f"torchx.{kind}":
                more: dict[str, Any] = getattr(function, "_plugin_more", {})
                functions_by_name = {function._plugin_name: function, **more}
                plugins += [NamespacePlugin(f"torchx.{kind}", *item) for item in functions_by_name.items()]
    return plugins


def _namespace_modules(folder: str) -> list[str]:
    """Return the names of the modules in a ``torchx_plugins`` package, wherever parts of it are installed.

    Modules of its subpackages are included; these need not have an ``__init__.py``.
    """
    names: set[str] = set()
    for place in dict.fromkeys(sys.path):
        root = Path(place or ".", NAMESPACE, folder)
        for path in root.rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if parts and all(part.isidentifier() and not part.startswith("_") for part in parts):
                names.add(".".join(parts))
    return sorted(names)


def _warn(errors: list[tuple[str, str]]) -> None:
    for module, error in errors:
        warnings.warn(f"the plugin module {module} cannot be loaded: {error}", RuntimeWarning, stacklevel=3)


@functools.cache
def _entry_points_of_group(group: str) -> tuple[EntryPoint, ...]:
    places = tuple(dict.fromkeys(sys.path))
    # in an archive only importlib.metadata can look
    if group not in _declared_groups(places) and not any(map(os.path.isfile, places)):
        return ()
    from importlib import metadata  # takes as long as all that a command imports besides

    return tuple(
        EntryPoint(group, point.name, point.value.partition("[")[0].strip())
        for point in metadata.entry_points(group=group)
    )


@functools.cache
def _declared_groups(places: tuple[str, ...]) -> frozenset[str]:
    """Return the groups of entry points that distributions in these directories declare."""
    groups: set[str] = set()
    for place in places:
        for kind in ("dist-info", "egg-info"):
            for declaration in Path(place).glob(f"*.{kind}/entry_points.txt"):
                try:
                    lines = declaration.read_text("utf-8", "replace").splitlines()
                except OSError:  # importlib.metadata leaves it out too
                    continue
                groups.update(line.strip()[1:-1] for line in lines if line.startswith("["))
    return frozenset(groups)
