"""Plugins as TorchX's 2026 versions declare them: decorated functions in ``torchx_plugins.*`` packages.

`shunter.plugins` finds the installed plugins; this module holds the decorators and the registry.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import Any, TypeVar

from shunter.plugins import NamespacePlugin, entry_points, namespace_plugins
from shunter.specs.resources import IS_FRACTIONAL, RESOURCE_NAME, Resource

logger = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])
NAMED_RESOURCES_ATTR = "NAMED_RESOURCES"
SOURCE_VARIABLE = "TORCHX_PLUGINS_SOURCE"

WHOLE = 1.0
HALF = 0.5
QUARTER = 0.25
EIGHTH = 0.125
SIXTEENTH = 0.0625


class PluginType(str, Enum):
    """Kind of a plugin; the value is its group of entry points."""

    SCHEDULER = "torchx.schedulers"
    NAMED_RESOURCE = "torchx.named_resources"
    TRACKER = "torchx.tracker"


class PluginSource(IntFlag):
    """Where plugins are searched for."""

    NONE = 0
    NAMESPACE_PKG = 1
    ENTRYPOINT = 2


class resource_tags:
    """Keys of `Resource.tags`: the name of a registered resource, and whether it is a fraction."""

    RESOURCE_NAME = RESOURCE_NAME
    IS_FRACTIONAL = IS_FRACTIONAL


@dataclass
class RegistrationError:
    """A plugin that cannot be used, and why."""

    module: str
    error: str
    name: str | None = None
    plugin_type: PluginType | None = None


class register:
    """Decorator: makes a function of a module in ``torchx_plugins.*`` a plugin.

    Args:
        type: its kind.
        name: its name; by default that of the function.
    """

    def __init__(self, type: PluginType, name: str | None = None) -> None:
        self.type = type
        self.name = name

    def __call__(self, fn: F) -> F:
        """Mark a function."""
        marked: Any = fn
        marked._plugin_type = self.type
        marked._plugin_name = self.name or marked.__name__
        return fn

    @classmethod
    def scheduler(cls, name: str | None = None) -> Callable[[F], F]:
        """Register a scheduler factory: ``fn(session_name, **kwargs)``."""
        return cls(PluginType.SCHEDULER, name)

    @classmethod
    def tracker(cls, name: str | None = None) -> Callable[[F], F]:
        """Register a tracker factory: ``fn(config)``."""
        return cls(PluginType.TRACKER, name)

    @classmethod
    def named_resource(
        cls,
        name: str | None = None,
        aliases: list[str] | None = None,
        fractionals: Callable[[Resource], Mapping[float, str]] | Mapping[float, str] | None = None,
    ) -> Callable[[Callable[..., Resource]], Callable[..., Resource]]:
        """Register a resource factory.

        Args:
            name: name of the resource; the function's name by default.
            aliases: other names of the resource.
            fractionals: share of the whole -> suffix of the fraction's name; or a function that returns this
                mapping for a resource. The decorated function then takes ``fractional``.
        """

        def decorate(fn: Callable[..., Resource]) -> Callable[..., Resource]:
            own = name or fn.__name__
            whole = _tagged(fn, own, None)
            more = {alias: _tagged(fn, own, None) for alias in aliases or ()}
            shares = fractionals(fn()) if callable(fractionals) else dict(fractionals or {})
            for share, suffix in shares.items():
                more[f"{own}_{suffix}"] = _tagged(fn, f"{own}_{suffix}", share)
            for made in more.values():
                vars(made)["_plugin_base_name"] = own
            marked: Any = whole
            marked._plugin_more = more
            _keep_in_module(fn.__module__, {own: whole, **more})
            return cls(PluginType.NAMED_RESOURCE, own)(whole)

        return decorate


def _keep_in_module(module_name: str, factories: Mapping[str, Callable[..., Resource]]) -> None:
    """Set a module's resource factories as its attributes, and collect all of them in ``NAMED_RESOURCES``.

    Raises:
        ValueError: the module already has one with this name.
    """
    module = sys.modules.get(module_name)
    if module is None:
        return
    known = vars(module).setdefault(NAMED_RESOURCES_ATTR, {})
    for name, factory in factories.items():
        if name in known:
            raise ValueError(f"the module {module_name} registers the named resource {name!r} twice")
        known[name] = factory
        setattr(module, name, factory)


def _tagged(fn: Callable[..., Resource], name: str, share: float | None) -> Callable[..., Resource]:
    @functools.wraps(fn)
    def make(*args: Any, **kwargs: Any) -> Resource:
        made = fn(*args, **kwargs) if share is None or args or kwargs else fn(share)
        made.tags[RESOURCE_NAME] = name
        made.tags[IS_FRACTIONAL] = share is not None and share != WHOLE
        return made

    make.__name__ = name
    return make


def powers_of_two_gpus(resource: Resource) -> dict[float, str]:
    """Return the halves of a resource's gpus down to one: share -> number of gpus.

    Raises:
        ValueError: the number of gpus is not a power of two.
    """
    gpus = resource.gpu
    if gpus < 1 or gpus & (gpus - 1):
        raise ValueError(f"the number of gpus is {gpus}; it must be a power of two")
    return {(gpus >> shift) / gpus: str(gpus >> shift) for shift in range(gpus.bit_length())}


def halve_mem_down_to(*, minGiB: int) -> Callable[[Resource], dict[float, str]]:
    """Return a function that halves a resource's memory down to ``minGiB``: share -> GiB."""

    def shares(resource: Resource) -> dict[float, str]:
        if resource.memMB < 1 or resource.memMB % 1024:
            raise ValueError(f"memMB is {resource.memMB}; it must be a multiple of 1024")
        whole = resource.memMB // 1024
        odd = whole // (whole & -whole)
        if minGiB < odd:
            raise ValueError(f"{whole} GiB cannot be halved down to {minGiB} GiB, only to {odd} GiB")
        found, size = {}, whole
        while size >= minGiB:
            found[size / whole] = str(size)
            size = size // 2 if size % 2 == 0 else 0
        return found

    return shares


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

    def __str__(self) -> str:
        lines = []
        for kind, plugins in self.to_dict().items():
            lines.append(f"{kind}:" if plugins else f"{kind}: []")
            for plugin in plugins:
                lines += [
                    f"{'- ' if not n else '  '}{key}: {json.dumps(value) if key == 'error' else value}"
                    for n, (key, value) in enumerate(plugin.items())
                ]
        return "\n".join(lines)

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
                    found[point.name] = _deferred(point.load)  # also in place of one in a namespace
        return found


def _deferred(load: Callable[[], Any]) -> Callable[..., Any]:
    def create(*args: Any, **kwargs: Any) -> Any:
        return load()(*args, **kwargs)

    return create


@functools.cache
def registry() -> PluginRegistry:
    """Return the registry of this process. The variable TORCHX_PLUGINS_SOURCE says where it looks."""
    text = os.environ.get(SOURCE_VARIABLE, "")
    return PluginRegistry(PluginSource(int(text))) if text.isdigit() else PluginRegistry()
