"""The decorators of plugins in ``torchx_plugins.*`` packages, as TorchX's 2026 versions declare them.

`shunter.plugins` finds the installed plugins.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from shunter.specs.resources import IS_FRACTIONAL, RESOURCE_NAME, Resource

F = TypeVar("F", bound=Callable[..., Any])
NAMED_RESOURCES_ATTR = "NAMED_RESOURCES"

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


class resource_tags:
    """Keys of `Resource.tags`: the name of a registered resource, and whether it is a fraction."""

    RESOURCE_NAME = RESOURCE_NAME
    IS_FRACTIONAL = IS_FRACTIONAL


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
