"""The installed plugins of TorchX's kinds, as its 2026 versions list them (``torchx.plugins``).

`shunter.plugins` finds them; the decorators that make a plugin are in the package.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
from dataclasses import dataclass
from enum import IntFlag
from typing import Any

from shunter.compat.plugins import PluginType
from shunter.compat.util.entrypoints import DeferredEntry
from shunter.plugins import NamespacePlugin, entry_points, namespace_plugins

SOURCE_VARIABLE = "TORCHX_PLUGINS_SOURCE"


class PluginSource(IntFlag):
    """Where plugins are searched for."""

    NONE = 0
    NAMESPACE_PKG = 1
    ENTRYPOINT = 2


@dataclass
class RegistrationError:
    """A plugin that cannot be used, and why."""

    module: str
    error: str
    name: str | None = None
    plugin_type: PluginType | None = None


class PluginRegistry:
    """The installed plugins; those of a kind are searched for on first use.

    Args:
        plugin_sources: where to look.
    """

    def __init__(
        self, plugin_sources: PluginSource = PluginSource.NAMESPACE_PKG | PluginSource.ENTRYPOINT
    ) -> None:
        self._sources = plugin_sources
        self._found: dict[PluginType, dict[str, Any]] = {}
        self._errors: list[RegistrationError] = []

    def get(self, plugin_type: PluginType) -> dict[str, Any]:
        """Return the plugins of a kind, by name."""
        if plugin_type not in self._found:
            self._found[plugin_type] = self._discover(plugin_type)
        return self._found[plugin_type]

    def info(self, plugin_type: PluginType | None = None) -> dict[Any, Any]:
        """Return the plugins of a kind by name, or those of all kinds by kind."""
        if plugin_type is not None:
            return dict(self.get(plugin_type))
        return {kind: dict(self.get(kind)) for kind in PluginType}

    @property
    def errors(self) -> builtins.list[RegistrationError]:
        """The plugins that cannot be used, of the kinds that were requested."""
        return list(self._errors)

    def load_errors(self, plugin_type: PluginType | None = None) -> builtins.list[RegistrationError]:
        """Return the plugins of a kind, or of all kinds, that cannot be used."""
        self.info(plugin_type)
        return [error for error in self._errors if plugin_type in (None, error.plugin_type)]

    def clear(self) -> None:
        """Forget what was found."""
        self._found.clear()
        self._errors.clear()

    def to_dict(self) -> dict[str, builtins.list[dict[str, Any]]]:
        """Return all plugins as JSON values, with those that cannot be used under ``errors``."""
        document: dict[str, list[dict[str, Any]]] = {}
        for kind in PluginType:
            document[kind.name.lower()] = [
                {"name": name, "module": inspect.unwrap(fn).__module__} for name, fn in self.get(kind).items()
            ]
        document["errors"] = [{"module": each.module, "error": each.error} for each in self._errors]
        return document

    def _discover(self, kind: PluginType) -> dict[str, Any]:
        found: dict[str, Any] = {}
        kind_name = kind.value.removeprefix("torchx.")
        if self._sources & PluginSource.NAMESPACE_PKG:
            errors: list[tuple[str, str]] = []
            found = {plugin.name: plugin.load() for plugin in namespace_plugins(kind_name, errors)}
            self._errors += [RegistrationError(module, error, plugin_type=kind) for module, error in errors]
        if self._sources & PluginSource.ENTRYPOINT:
            for point in entry_points(kind_name):
                if point.group.startswith("torchx.") and not isinstance(point, NamespacePlugin):
                    found[point.name] = DeferredEntry(point)  # also in place of one in a namespace
        return found


@functools.cache
def registry() -> PluginRegistry:
    """Return the registry of this process. The variable TORCHX_PLUGINS_SOURCE says where it looks."""
    text = os.environ.get(SOURCE_VARIABLE, "")
    return PluginRegistry(PluginSource(int(text))) if text.isdigit() else PluginRegistry()
