"""Named resources: ours, those that plugins add, and how one is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module

from shunter.errors import ConfigError, did_you_mean
from shunter.plugins import entry_points
from shunter.specs import named_resources_aws, named_resources_generic
from shunter.specs.resources import NULL_RESOURCE, Resource, ResourceFactory


class NamedResources(Mapping[str, Resource]):
    """Resources by name: ours, then those of plugins, which add names and never replace ours.

    Raises:
        ConfigError: an unknown name is looked up; the message suggests similar ones. It is also a
            ``KeyError`` for code that treats this as any mapping.
    """

    def __init__(self) -> None:
        self._builtin: dict[str, ResourceFactory] | None = None
        self._added: dict[str, ResourceFactory] | None = None

    def add(self, name: str, factory: ResourceFactory) -> None:
        """Add a name unless it is taken already."""
        if name not in self._ours():
            self._plugins().setdefault(name, factory)

    def __getitem__(self, name: str) -> Resource:
        factory = self._ours().get(name) or self._plugins().get(name)
        if factory is None:
            raise UnknownResourceError(f"there is no named resource {name!r}", hint=did_you_mean(name, self))
        return factory()

    def __contains__(self, name: object) -> bool:
        return name in self._ours() or name in self._plugins()

    def __iter__(self) -> Iterator[str]:
        return iter({**self._ours(), **self._plugins()})

    def __len__(self) -> int:
        return len({**self._ours(), **self._plugins()})

    def _ours(self) -> dict[str, ResourceFactory]:
        if self._builtin is None:
            self._builtin = {
                **named_resources_generic.NAMED_RESOURCES,
                **named_resources_aws.NAMED_RESOURCES,
                "NULL": lambda: Resource.copy(NULL_RESOURCE),
                "MISSING": lambda: Resource.copy(NULL_RESOURCE),
            }
        return self._builtin

    def _plugins(self) -> dict[str, ResourceFactory]:
        # looked for when a name is not one of ours
        if self._added is None:
            self._added = {
                point.name: point.call
                for point in entry_points("named_resources")
                if point.name not in self._ours()
            }
            custom = os.environ.get("TORCHX_CUSTOM_NAMED_RESOURCES")
            if custom:
                for name, factory in import_module(custom).NAMED_RESOURCES.items():
                    self.add(name, factory)
        return self._added


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
    return Resource(
        cpu=2 if cpu is None else cpu, gpu=0 if gpu is None else gpu, memMB=1024 if memMB is None else memMB
    )
