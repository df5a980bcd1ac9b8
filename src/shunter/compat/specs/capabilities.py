"""Typed names for what a resource can do (``torchx.specs.capabilities``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from shunter.specs.resources import Resource

V = TypeVar("V")


@dataclass(frozen=True)
class CapabilityKey(Generic[V]):
    """A key of ``Resource.capabilities``, with the type of its values.

    Args:
        namespace, name: the key is ``namespace.name``.
        type: of the values.
    """

    namespace: str
    name: str
    type: type[V]

    @property
    def key(self) -> str:
        """The key as it stands in ``Resource.capabilities``."""
        return f"{self.namespace}.{self.name}"

    def set(self, resource: Resource, value: V) -> None:
        """Set the capability of a resource."""
        resource.capabilities[self.key] = value

    def get(self, resource: Resource, default: V | None = None) -> V | None:
        """Return the capability of a resource; the default if it has none.

        Raises:
            TypeError: its value has another type.
        """
        value = resource.capabilities.get(self.key, default)
        is_odd_bool = isinstance(value, bool) and self.type is not bool
        if value is not None and (is_odd_bool or not isinstance(value, self.type)):
            found = type(value).__name__
            raise TypeError(f"capability {self.key}: expected `{self.type.__name__}`, got `{found}`")
        return value
