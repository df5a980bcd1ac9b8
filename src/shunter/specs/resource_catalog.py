"""Named resources: ours, those that plugins add, and how one is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module

from shunter.errors import ConfigError, did_you_mean
from shunter.plugins import entry_points
from shunter.specs import named_resources_aws, named_resources_generic
from shunter.specs.resources import NULL_RESOURCE, Resource, ResourceFactory

_OURS: dict[str, ResourceFactory] = {
    **named_resources_generic.NAMED_RESOURCES,
    **named_resources_aws.NAMED_RESOURCES,
    "NULL": lambda: Resource.copy(NULL_RESOURCE),
    "MISSING": lambda: Resource.copy(NULL_RESOURCE),
}


class NamedResources(Mapping[str, Resource]):
    """Resources by name: ours, then those of plugins, which add names and never replace ours.

    Raises:
        ConfigError: an unknown name is looked up; the message suggests similar ones. It is also a
            ``KeyError`` for code that treats this as any mapping.
    """

    @cached_property
    def _all(self) -> dict[str, ResourceFactory]:
        custom = os.environ.get("TORCHX_CUSTOM_NAMED_RESOURCES")
        plugins = {point.name: point.call for point in entry_points("named_resources")}
        return {**_OURS, **(import_module(custom).NAMED_RESOURCES if custom else {}), **plugins} | _OURS

    def __getitem__(self, name: str) -> Resource:
        factory = _OURS.get(name) or self._all.get(name)  # plugins are looked for only if they are needed
        if factory is None:
            raise UnknownResourceError(f"there is no named resource {name!r}", hint=did_you_mean(name, self))
        return factory()

    def __contains__(self, name: object) -> bool:
        return name in _OURS or name in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


class UnknownResourceError(ConfigError, KeyError):
    """No named resource has this name."""

    __str__ = ConfigError.__str__


named_resources = NamedResources()


def get_named_resources(res: str) -> Resource:
    """Return the resource of this name.

    Raises:
        UnknownResourceError: there is none.
    """
    return named_resources[res]


def resource(
    cpu: int | None = None, gpu: int | None = None, memMB: int | None = None, h: str | None = None
) -> Resource:
    """Return the resource named ``h``, or one of these figures (2 cpus, no gpu, 1024 MiB by default).

    Raises:
        UnknownResourceError: ``h`` names no resource.
    """
    if h:
        return get_named_resources(h)
    return Resource(2 if cpu is None else cpu, 0 if gpu is None else gpu, 1024 if memMB is None else memMB)
