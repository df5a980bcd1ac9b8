"""Questions about type annotations at run time, on top of `typing`."""

from __future__ import annotations

import types
import typing
from typing import Any, get_args

__all__ = [
    "class_hints",
    "evaluate",
    "get_args",
    "get_origin",
    "is_annotated",
    "is_any",
    "is_literal",
    "is_union",
    "make_union",
]

class_hints = typing.get_type_hints


def get_origin(tp: Any) -> Any:
    """Do what ``typing.get_origin`` does; of any union, return ``types.UnionType``."""
    origin = typing.get_origin(tp)
    return types.UnionType if origin is typing.Union else origin


def is_union(tp: Any) -> bool:
    """Tell whether a type is a union, written either way."""
    return get_origin(tp) is types.UnionType


def is_any(tp: Any) -> bool:
    """Tell whether a type is ``typing.Any``."""
    return tp is Any


def is_literal(tp: Any) -> bool:
    """Tell whether a type is a ``typing.Literal``."""
    return typing.get_origin(tp) is typing.Literal


def is_annotated(tp: Any) -> bool:
    """Tell whether a type is a ``typing.Annotated``."""
    return typing.get_origin(tp) is typing.Annotated


def make_union(members: tuple[Any, ...]) -> Any:
    """Return the union of types."""
    return typing.Union[members]  # noqa: UP007 - made at run time


def evaluate(annotation: Any, names: dict[str, Any]) -> Any:
    """Return the type that an annotation names, which may be postponed (a text).

    The names of `typing` are known too, so that components may import them for type checkers only.

    Raises:
        Exception: whatever its evaluation raises.
    """
    known = {**{name: getattr(typing, name) for name in typing.__all__}, **names}
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, globalns=names, localns=known, include_extras=True)["it"]
