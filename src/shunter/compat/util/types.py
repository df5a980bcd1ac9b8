"""Types of parameters, and values from texts (``torchx.util.types``)."""

from __future__ import annotations

import re
import types
import typing
from typing import Any, TypeVar

from shunter.errors import OptionParseError
from shunter.specs.conversion import from_text, parse_dict

T = TypeVar("T")


def none_throws(optional: T | None, message: str = "Unexpected `None`") -> T:
    """Return a value that must not be None.

    Raises:
        AssertionError: it is None.
    """
    if optional is None:
        raise AssertionError(message)
    return optional


def decode_optional(param_type: Any) -> Any:
    """Return ``T`` for ``Optional[T]``, any other type as it is."""
    args = typing.get_args(param_type)
    if typing.get_origin(param_type) not in (typing.Union, types.UnionType) or type(None) not in args:
        return param_type
    inner = [each for each in args if each is not type(None)]
    return inner[0] if len(inner) == 1 else param_type


def _without_notes(kind: Any) -> Any:
    """Return ``T`` for ``Annotated[T, ...]``."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def to_list(arg: str) -> list[str]:
    """Split ``a,b`` (or ``a;b``); empty items are left out."""
    return [item.strip() for item in re.split("[,;]", arg) if item.strip()]


def to_dict(arg: str) -> dict[str, str]:
    """Read ``k=v,k2=v2``. The last separator before a ``=`` ends a pair, so that values may be lists.

    Raises:
        ValueError: it does not parse, or a value is missing; an empty one is written ``k=''``.
    """
    pairs = parse_dict(arg)
    for key, value in pairs.items():
        if not value and f"{key}=''" not in arg and f'{key}=""' not in arg:
            raise OptionParseError(f"{arg!r} has no value for {key!r}", hint=f"An empty value: {key}=''")
    return pairs


def decode_from_string(encoded_value: str, annotation: Any) -> Any:
    """Convert a text to a type; the empty text is None.

    Raises:
        ValueError: the text does not fit, or the type cannot be written as text.
    """
    kind = decode_optional(_without_notes(annotation))
    return from_text(kind, encoded_value) if encoded_value else None


def decode(encoded_value: Any, annotation: Any) -> Any:
    """Convert a value to a type if it is a text, else return it as it is."""
    return decode_from_string(encoded_value, annotation) if isinstance(encoded_value, str) else encoded_value
