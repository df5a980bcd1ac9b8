"""Type annotations at run time, without `import typing` for the plain ones: ``int | None``, ``list[str]``.

What only `typing` makes (``Optional``, ``Literal``, ``Annotated``) exists only once it has been imported.
"""

from __future__ import annotations

import sys
import types
import typing
from typing import Any, Union, get_type_hints


def get_origin(tp: Any) -> Any:
    """Do what ``typing.get_origin`` does; of any union, return ``types.UnionType``."""
    if type(tp) is types.UnionType:
        return types.UnionType
    if type(tp) is types.GenericAlias:
        return tp.__origin__
    typing = sys.modules.get("typing")
    origin = typing.get_origin(tp) if typing else None
    return types.UnionType if typing and origin is typing.Union else origin


def get_args(tp: Any) -> tuple[Any, ...]:
    """Do what ``typing.get_args`` does."""
    if type(tp) in (types.UnionType, types.GenericAlias):
        return tp.__args__  # type: ignore[no-any-return]
    typing = sys.modules.get("typing")
    return typing.get_args(tp) if typing else ()


def is_union(tp: Any) -> bool:
    """Tell whether a type is a union, written either way."""
    return get_origin(tp) is types.UnionType


def is_any(tp: Any) -> bool:
    """Tell whether a type is ``typing.Any``."""
    typing = sys.modules.get("typing")
    return typing is not None and tp is typing.Any


def is_literal(tp: Any) -> bool:
    """Tell whether a type is a ``typing.Literal``."""
    typing = sys.modules.get("typing")
    return typing is not None and typing.get_origin(tp) is typing.Literal


def is_annotated(tp: Any) -> bool:
    """Tell whether a type is a ``typing.Annotated``."""
    typing = sys.modules.get("typing")
    return typing is not None and typing.get_origin(tp) is typing.Annotated


def make_union(members: tuple[Any, ...]) -> Any:
    """Return the union of types."""
    if len(members) == 1:
        return members[0]
    return Union[members]  # noqa: UP007 - made at run time


def class_hints(cls: type[Any]) -> dict[str, Any]:
    """Do what ``typing.get_type_hints`` does for a class.

    Raises:
        Exception: whatever an annotation raises that cannot be evaluated.
    """
    if "typing" not in sys.modules:
        try:
            return {
                name: evaluate(annotation, vars(sys.modules[base.__module__]))
                for base in reversed(cls.__mro__)
                for name, annotation in getattr(base, "__annotations__", {}).items()
            }
        except Exception:  # names that `typing` looks up in other ways
            pass
    return get_type_hints(cls)


def evaluate(annotation: Any, names: dict[str, Any]) -> Any:
    """Return the type that an annotation names, which may be postponed (a text).

    The names of `typing` are known without import, so that components need it for type checkers only.

    Raises:
        Exception: whatever its evaluation raises.
    """
    if "typing" not in sys.modules:
        try:
            if isinstance(annotation, str) and '"' not in annotation and "'" not in annotation:
                annotation = eval(annotation, names)
            annotation = type(None) if annotation is None else annotation
            if isinstance(annotation, type) or type(annotation) in (types.UnionType, types.GenericAlias):
                return annotation
        except NameError:
            pass
    known = {**{name: getattr(typing, name) for name in typing.__all__}, **names}
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, globalns=names, localns=known, include_extras=True)["it"]
