"""Values from text and from JSON, checked against a type annotation.

One decoder serves component arguments, scheduler options and the specs read back from JSON, so that a
type means the same wherever a person writes a value of it.
"""

from __future__ import annotations

import enum
import json
import os
import re
import types
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from shunter.errors import OptionParseError, did_you_mean
from shunter.limits import cut
from shunter.specs.pairs import parse_dict, parse_pairs, split_items, unquote

TRUE_WORDS = frozenset({"true", "yes", "on", "1", "t", "y"})
FALSE_WORDS = frozenset({"false", "no", "off", "0", "f", "n"})

Decoder = Callable[[Any, Any], Any]


class ConversionError(ValueError):
    """A value does not fit its type. ``path`` says where in a nested value."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem = problem
        self.path = path


def snake_case(name: str) -> str:
    """Return ``mem_mb`` for ``memMB`` and ``mem-mb``, ``s3_output_path`` for ``S3OutputPath``."""
    hump = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    return re.sub(hump, "_", name.replace("-", "_")).lower()


# ---- questions about types


def is_union(tp: Any) -> bool:
    """Tell whether a type is a union, written either way."""
    return get_origin(tp) in (Union, types.UnionType)


def is_literal(tp: Any) -> bool:
    """Tell whether a type is a ``typing.Literal``."""
    return get_origin(tp) is Literal


def is_enum(tp: Any) -> bool:
    """Tell whether a type is an enumeration."""
    return isinstance(tp, type) and issubclass(tp, enum.Enum)


def is_path_type(tp: Any) -> bool:
    """Tell whether a type is `pathlib.Path` or its base."""
    return tp in (Path, PurePath)


def is_optional(tp: Any) -> bool:
    """Tell whether None is one of the type's values."""
    return tp is type(None) or (is_union(tp) and type(None) in get_args(tp))


def bare_type(tp: Any) -> Any:
    """Return the type without None: ``int`` for ``int | None``."""
    if not is_union(tp):
        return tp
    return Union[tuple(arg for arg in get_args(tp) if arg is not type(None))]  # noqa: UP007 - made at run time


#: The containers that annotations name, and those that values have.
_CONTAINERS: dict[Any, type] = {
    list: list,
    Sequence: list,
    MutableSequence: list,
    tuple: tuple,
    dict: dict,
    Mapping: dict,
    MutableMapping: dict,
}


def container_of(tp: Any) -> type | None:
    """Return list, tuple or dict if the values of a type (or None) are such; otherwise None."""
    bare = bare_type(tp)
    return _CONTAINERS.get(get_origin(bare) or bare)


def is_list_type(tp: Any) -> bool:
    """Tell whether a type is a list (so that an option of it can be repeated)."""
    return container_of(tp) is list


def is_dict_type(tp: Any) -> bool:
    """Tell whether a type is a dict."""
    return container_of(tp) is dict


def is_container_type(tp: Any) -> bool:
    """Tell whether values of a type hold others: lists, tuples, dicts, dataclasses."""
    return container_of(tp) is not None or is_dataclass(bare_type(tp))


def list_item_type(tp: Any) -> Any:
    """Return the type of a list's items: str if it does not say."""
    return (get_args(bare_type(tp)) or (str,))[0]


def type_name(tp: Any) -> str:
    """Return a type as people write it."""
    args = get_args(tp)
    if is_union(tp):
        return " | ".join(map(type_name, args))
    if is_literal(tp):
        return "|".join(map(str, args))
    if is_enum(tp):
        return "|".join(tp.__members__)
    if tp is type(None):
        return "None"
    if tp is Ellipsis:
        return "..."
    if args:
        cls = container_of(tp) or get_origin(tp)
        return f"{getattr(cls, '__name__', cls)}[{', '.join(map(type_name, args))}]"
    return getattr(tp, "__name__", str(tp))


def has_default(field: Field[Any]) -> bool:
    """Tell whether a field of a dataclass has a default or makes one."""
    return field.default is not MISSING or field.default_factory is not MISSING


def default_of(field: Field[Any]) -> Any:
    """Return the default of a field, made if there is a factory; None if it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


# ---- values


def from_text(tp: Any, text: str) -> Any:
    """Convert what a person typed.

    Lists and tuples are written ``a,b`` (or ``a;b``), dicts ``k=v,k2=v2`` (or ``k:v;k2:v2``, or ``k,k2``
    where values may be None), dataclasses ``field=value,...``; every container also as JSON. The items of a
    list of dicts or dataclasses are separated by ``,`` alone. An empty text is None for a container that may
    be None, otherwise the empty container.

    Raises:
        ConversionError: the text does not fit the type.
    """
    if is_union(tp):
        if is_optional(tp) and (text == "None" or (not text and container_of(tp))):
            return None
        # str takes any text, so it is tried last
        members = [member for member in get_args(tp) if member is not type(None)]
        return _first_fit(tp, sorted(members, key=lambda member: member is str), text, from_text)
    if not is_container_type(tp):
        return _scalar_from_text(tp, text)
    if text.lstrip().startswith(("[", "{")):
        try:
            return from_value(tp, json.loads(text))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ConversionError(f"{text[:200]!r} is not JSON: {error}") from None
    try:
        parts = _parts(tp, text)
    except OptionParseError as error:
        raise ConversionError(error.message) from None
    return _filled(tp, parts, from_text)


def from_value(tp: Any, value: Any) -> Any:
    """Check a value (of JSON, TOML or Python) against a type; lists become tuples where the type has those.

    Raises:
        ConversionError: it does not fit; the message says where.
    """
    if is_union(tp):
        return _first_fit(tp, get_args(tp), value, from_value)
    container = container_of(tp)
    if (container in (list, tuple) and isinstance(value, (list, tuple))) or (
        (container is dict or is_dataclass(tp)) and isinstance(value, Mapping)
    ):
        return _filled(tp, value, from_value)
    return _checked_scalar(tp, value)


def _first_fit(tp: Any, members: Sequence[Any], value: Any, decode: Decoder) -> Any:
    problems = {}
    for member in members:
        try:
            return decode(member, value)
        except ConversionError as error:
            problems[member] = error
    problems.pop(type(None), None)
    if len(problems) == 1:
        raise next(iter(problems.values()))
    raise ConversionError(f"{value!r} must be one of {type_name(bare_type(tp))}")


def _filled(tp: Any, parts: Any, decode: Decoder) -> Any:
    """Return a list, tuple, dict or dataclass with its parts decoded."""
    container = container_of(tp)
    if container is dict:
        key_type, value_type = get_args(tp) or (Any, Any)
        return {
            _at(f"key {key!r}", decode, key_type, key): _at(f"[{key}]", decode, value_type, part)
            for key, part in parts.items()
        }
    if container is None:
        return _make_dataclass(tp, parts, decode)
    place = "item {}" if decode is from_text else "[{}]"
    first = 1 if decode is from_text else 0
    items = _item_types(tp, len(parts)) if container is tuple else [_item_type(tp)] * len(parts)
    return container(
        _at(place.format(index), decode, item, part)
        for index, (item, part) in enumerate(zip(items, parts, strict=True), first)
    )


def _item_type(tp: Any) -> Any:
    return (get_args(tp) or (Any,))[0]


def _item_types(tp: Any, count: int) -> Sequence[Any]:
    """Return the types of a tuple's items."""
    args = get_args(tp) or (Any, Ellipsis)
    if len(args) == 2 and args[1] is Ellipsis:
        return [args[0]] * count
    if len(args) != count:
        raise ConversionError(f"{count} values where {type_name(tp)} takes {len(args)}")
    return args


def _make_dataclass(tp: Any, parts: Mapping[str, Any], decode: Decoder) -> Any:
    init_fields = {field.name: field for field in fields(tp) if field.init}
    for name in parts:
        if name not in init_fields:
            raise ConversionError(
                f"{tp.__name__} has no field {name!r}. {did_you_mean(str(name), init_fields)}"
            )
    hints = get_type_hints(tp)
    values = {name: _at(name, decode, hints[name], part) for name, part in parts.items()}
    missing = [name for name, field in init_fields.items() if name not in values and not has_default(field)]
    if missing:
        raise ConversionError(f"{tp.__name__} needs {', '.join(missing)}")
    return tp(**values)


def _at(place: str, decode: Decoder, tp: Any, value: Any) -> Any:
    try:
        return decode(tp, value)
    except ConversionError as error:
        path = f"{place}{error.path}" if error.path.startswith("[") else f"{place}.{error.path}".rstrip(".")
        raise ConversionError(error.problem, path) from None


# ---- how containers are typed


def _parts(tp: Any, text: str) -> Any:
    """Split the text of a container into the texts of its parts."""
    container = container_of(tp)
    if container is tuple:
        return split_items(text)
    if container is list:
        item = _item_type(tp)
        # values of pairs hold any ";", such as regular expressions do
        return (
            split_items(text, ",")
            if is_dict_type(item) or is_dataclass(bare_type(item))
            else split_items(text)
        )
    if container is None:
        return {name: unquote(value) for name, value in parse_pairs(text).items()}
    sign = next((char for char in text if char in "=:"), "")
    if not text.strip():
        return {}
    if sign == ":":
        return dict(_colon_pair(item) for item in split_items(text))
    if not sign and is_optional((get_args(tp) or (Any, Any))[1]):
        return dict.fromkeys(split_items(text), "None")
    return parse_dict(text)


def _colon_pair(item: str) -> tuple[str, str]:
    key, colon, value = item.partition(":")
    if not colon or not key:
        raise ConversionError(f"{item!r} is not of the form key:value")
    return key.strip(), unquote(value.strip())


# ---- scalars


def _scalar_from_text(tp: Any, text: str) -> Any:
    if tp in (str, Any, object):
        return text
    if tp is bool:
        if text.lower() in TRUE_WORDS | FALSE_WORDS:
            return text.lower() in TRUE_WORDS
        raise ConversionError(f"{text!r} must be true or false")
    if tp in (int, float):
        try:
            return int(text, 16) if tp is int and text.strip().lower().startswith("0x") else tp(text)
        except ValueError:
            kind = "an integer" if tp is int else "a number"
            raise ConversionError(f"{cut(text)!r} is not {kind}") from None
    if is_literal(tp):
        choices = {str(choice): choice for choice in get_args(tp)}
        if text in choices:
            return choices[text]
        raise ConversionError(f"{text!r} is not a valid value. {did_you_mean(text, choices)}")
    if is_enum(tp):
        return _enum_member(tp, text)
    if is_path_type(tp):
        return tp(os.path.expanduser(text))
    if tp is type(None):
        if text in ("", "None"):
            return None
        raise ConversionError(f"{text!r} is not None")
    raise ConversionError(f"values of type {type_name(tp)} cannot be written as text")


def _enum_member(tp: type[enum.Enum], text: str) -> enum.Enum:
    if text in tp.__members__:
        return tp[text]
    for member in tp:
        if str(member.value) == text or member.name.lower() == text.lower():
            return member
    raise ConversionError(f"{text!r} is not a valid value. {did_you_mean(text, tp.__members__)}")


def _checked_scalar(tp: Any, value: Any) -> Any:
    if tp in (Any, object):
        return value
    if is_literal(tp):
        if value in get_args(tp):
            return value
    elif is_enum(tp):
        return value if isinstance(value, tp) else _enum_member(tp, str(value))
    elif is_path_type(tp) and isinstance(value, str):
        return tp(os.path.expanduser(value))
    elif tp is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConversionError("the number is too large") from None
    elif isinstance(tp, type) and isinstance(value, tp) and (tp is bool or not isinstance(value, bool)):
        return value
    raise ConversionError(f"{value!r} is not of type {type_name(tp)}")
