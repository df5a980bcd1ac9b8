"""Values from text and from JSON, checked against a type annotation.

One decoder serves component arguments, scheduler options and the specs read back from JSON, so that a
type means the same wherever a person writes a value of it.
"""

from __future__ import annotations

import enum
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any

from shunter.errors import OptionParseError, did_you_mean
from shunter.specs.dataclass_fields import has_default
from shunter.specs.limits import cut
from shunter.specs.pairs import parse_dict, parse_pairs, split_items, unquote
from shunter.specs.typehints import (
    class_hints,
    get_args,
    get_origin,
    is_any,
    is_literal,
    is_union,
    make_union,
)

TRUE_WORDS = frozenset({"true", "yes", "on", "1", "t", "y"})
FALSE_WORDS = frozenset({"false", "no", "off", "0", "f", "n"})
LONGEST_NUMBER = 1000  # characters; Python does not write numbers of more than a few thousand


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


def is_optional(tp: Any) -> bool:
    """Tell whether None is one of the type's values."""
    return tp is type(None) or (is_union(tp) and type(None) in get_args(tp))


def bare_type(tp: Any) -> Any:
    """Return the type without None: ``int`` for ``int | None``."""
    if not is_union(tp):
        return tp
    return make_union(tuple(arg for arg in get_args(tp) if arg is not type(None)))


def type_name(tp: Any) -> str:
    """Return a type as people write it."""
    if is_union(tp):
        return " | ".join(type_name(arg) for arg in get_args(tp))
    origin = get_origin(tp)
    if is_literal(tp):
        return "|".join(str(arg) for arg in get_args(tp))
    if isinstance(tp, type) and issubclass(tp, enum.Enum):
        return "|".join(tp.__members__)
    if tp is type(None):
        return "None"
    if origin is not None:
        args = ", ".join("..." if arg is Ellipsis else type_name(arg) for arg in get_args(tp))
        return f"{_builtin_container(origin).__name__}[{args}]"
    return getattr(tp, "__name__", str(tp))


def is_list_type(tp: Any) -> bool:
    """Tell whether a type is a list (so that an option of it can be repeated)."""
    bare = bare_type(tp)
    return _builtin_container(get_origin(bare) or bare) is list


def list_item_type(tp: Any) -> Any:
    """Return the type of a list's items: str if it does not say."""
    return (get_args(bare_type(tp)) or (str,))[0]


def is_path_type(tp: Any) -> bool:
    """Tell whether a type is `pathlib.Path` or its base."""
    return tp in (Path, PurePath)


def is_dict_type(tp: Any) -> bool:
    """Tell whether a type is a dict."""
    bare = bare_type(tp)
    return _builtin_container(get_origin(bare) or bare) is dict


def is_container_type(tp: Any) -> bool:
    """Tell whether values of a type hold others: lists, tuples, dicts, dataclasses."""
    bare = bare_type(tp)
    return _is_container(bare) or is_dataclass(bare)


# ---- from text


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
        return _union_from_text(tp, text)
    origin = get_origin(tp)
    kind = _builtin_container(origin or tp)
    if kind in (list, tuple, dict) or is_dataclass(tp):
        try:
            return _container_from_text(tp, kind, text)
        except OptionParseError as error:
            raise ConversionError(error.message) from None
    return _scalar_from_text(tp, text)


def _union_from_text(tp: Any, text: str) -> Any:
    bare = bare_type(tp)
    if is_optional(tp) and (text == "None" or (not text and _is_container(bare))):
        return None
    if not is_union(bare):
        return from_text(bare, text)
    # str takes any text, so it is asked last
    for member in sorted(get_args(bare), key=lambda member: member is str):
        try:
            return from_text(member, text)
        except ConversionError:
            continue
    raise ConversionError(f"{text!r} must be one of {type_name(bare)}")


def _container_from_text(tp: Any, kind: type, text: str) -> Any:
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return from_value(tp, json.loads(text))
        except (ValueError, RecursionError) as error:
            raise ConversionError(f"{text[:200]!r} is not JSON: {error}") from None
    args = get_args(tp)
    if kind is list:
        item = args[0] if args else str
        holds_pairs = is_dict_type(item) or is_dataclass(bare_type(item))
        # values of pairs are texts that hold any ";", such as regular expressions
        parts = split_items(text, ",") if holds_pairs else split_items(text)
        return [_at(f"item {i}", from_text, item, part) for i, part in enumerate(parts, 1)]
    if kind is tuple:
        parts = split_items(text)
        return tuple(
            _at(f"item {i}", from_text, item, part)
            for i, (item, part) in enumerate(zip(_tuple_items(tp, len(parts)), parts, strict=True), 1)
        )
    if kind is dict:
        key_type, value_type = args or (str, str)
        if is_optional(value_type) and "=" not in text and ":" not in text:  # keys alone, without values
            return {_at(f"key {key!r}", from_text, key_type, key): None for key in split_items(text)}
        return {
            _at(f"key {key!r}", from_text, key_type, key): _at(f"[{key}]", from_text, value_type, value)
            for key, value in _dict_pairs(text).items()
        }
    return _make_dataclass(tp, {key: unquote(value) for key, value in parse_pairs(text).items()}, from_text)


def _dict_pairs(text: str) -> dict[str, str]:
    if not text.strip():
        return {}
    first = next((char for char in text if char in "=:"), "")
    if first == ":":
        pairs = {}
        for item in split_items(text):
            key, colon, value = item.partition(":")
            if not colon or not key:
                raise ConversionError(f"{item!r} is not of the form key:value")
            pairs[key.strip()] = unquote(value.strip())
        return pairs
    return parse_dict(text)


def _scalar_from_text(tp: Any, text: str) -> Any:
    if tp is str or is_any(tp) or tp is object:
        return text
    if tp is bool:
        if text.lower() in TRUE_WORDS | FALSE_WORDS:
            return text.lower() in TRUE_WORDS
        raise ConversionError(f"{text!r} must be true or false")
    if tp in (int, float):
        try:
            if tp is int and text.strip().lower().startswith("0x"):
                return int(text if len(text) < LONGEST_NUMBER else "", 0)
            return tp(text)
        except ValueError:
            raise ConversionError(
                f"{cut(text)!r} is not {'an integer' if tp is int else 'a number'}"
            ) from None
    if isinstance(tp, type) and issubclass(tp, enum.Enum):
        return _enum_member(tp, text)
    if is_literal(tp):
        return _literal_member(tp, text)
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


def _literal_member(tp: Any, text: str) -> Any:
    for choice in get_args(tp):
        if text == str(choice):
            return choice
    raise ConversionError(f"{text!r} is not a valid value. {did_you_mean(text, map(str, get_args(tp)))}")


# ---- from JSON values


def from_value(tp: Any, value: Any) -> Any:
    """Check a value (of JSON, TOML or Python) against a type; lists become tuples where those are asked for.

    Raises:
        ConversionError: it does not fit; the message says where.
    """
    if is_any(tp) or tp is object:
        return value
    if is_union(tp):
        return _union_from_value(tp, value)
    origin = get_origin(tp)
    kind = _builtin_container(origin or tp)
    if kind is list and isinstance(value, (list, tuple)):
        item = (get_args(tp) or (object,))[0]
        return [_at(f"[{i}]", from_value, item, part) for i, part in enumerate(value)]
    if kind is tuple and isinstance(value, (list, tuple)):
        items = _tuple_items(tp, len(value))
        return tuple(
            _at(f"[{i}]", from_value, item, part)
            for i, (item, part) in enumerate(zip(items, value, strict=True))
        )
    if kind is dict and isinstance(value, Mapping):
        key_type, value_type = get_args(tp) or (object, object)
        return {
            _at(f"key {key!r}", from_value, key_type, key): _at(f"[{key}]", from_value, value_type, item)
            for key, item in value.items()
        }
    if is_dataclass(tp) and isinstance(value, Mapping):
        return _make_dataclass(tp, value, from_value)
    return _scalar_from_value(tp, value)


def _union_from_value(tp: Any, value: Any) -> Any:
    problems = []
    for member in get_args(tp):
        try:
            return from_value(member, value)
        except ConversionError as error:
            problems.append(error)
    members = [member for member in get_args(tp) if member is not type(None)]
    if len(members) == 1:
        raise problems[0] if get_args(tp)[0] is not type(None) else problems[-1]
    raise ConversionError(f"{value!r} must be one of {type_name(tp)}")


def _scalar_from_value(tp: Any, value: Any) -> Any:
    if tp is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConversionError("the number is too large") from None
    if tp is type(None) and value is None:
        return None
    if is_literal(tp):
        if value in get_args(tp):
            return value
    elif isinstance(tp, type) and issubclass(tp, enum.Enum):
        return value if isinstance(value, tp) else _enum_member(tp, str(value))
    elif is_path_type(tp) and isinstance(value, str):
        return tp(os.path.expanduser(value))
    elif isinstance(tp, type) and isinstance(value, tp) and (tp is bool or not isinstance(value, bool)):
        return value
    raise ConversionError(f"{value!r} is not of type {type_name(tp)}")


# ---- shared


def _make_dataclass(tp: Any, given: Mapping[str, Any], decode: Any) -> Any:
    wanted = {field.name: field for field in fields(tp) if field.init}
    for key in given:
        if key not in wanted:
            raise ConversionError(f"{tp.__name__} has no field {key!r}. {did_you_mean(str(key), wanted)}")
    hints = class_hints(tp)
    values = {key: _at(key, decode, hints[key], value) for key, value in given.items()}
    missing = [name for name, field in wanted.items() if name not in values and not has_default(field)]
    if missing:
        raise ConversionError(f"{tp.__name__} needs {', '.join(missing)}")
    return tp(**values)


def _tuple_items(tp: Any, count: int) -> Sequence[Any]:
    args = get_args(tp)
    if not args:
        return [str] * count
    if len(args) == 2 and args[1] is Ellipsis:
        return [args[0]] * count
    if len(args) != count:
        raise ConversionError(f"{count} values where {type_name(tp)} takes {len(args)}")
    return args


def _at(place: str, decode: Any, tp: Any, value: Any) -> Any:
    try:
        return decode(tp, value)
    except ConversionError as error:
        path = f"{place}{error.path}" if error.path.startswith("[") else f"{place}.{error.path}".rstrip(".")
        raise ConversionError(error.problem, path) from None


def _is_container(tp: Any) -> bool:
    return _builtin_container(get_origin(tp) or tp) in (list, tuple, dict)


def _builtin_container(origin: Any) -> Any:
    """Map the abstract containers that annotations use to the ones that values have."""
    if not isinstance(origin, type):
        return origin
    if issubclass(origin, Mapping):
        return dict
    if issubclass(origin, tuple):
        return tuple
    if issubclass(origin, Sequence) and not issubclass(origin, (str, bytes)):
        return list
    return origin
