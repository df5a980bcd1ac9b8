"""Values from text and from JSON, checked against a type annotation.

One decoder serves component arguments, scheduler options and the specs read back from JSON, so that a
type means the same wherever a person writes a value of it.

Lists are written ``a,b`` or ``a;b``, dicts ``k=v,k2=v2``. Of the separators between two ``=`` the last one
separates pairs, so ``FOO=a,b,BAR=c`` reads FOO = "a,b" and BAR = "c". A ``;`` separates pairs only if a name
and ``=`` follow it; every other ``;`` belongs to the value, as in ``LOSS=loss=(.*);``. An ``=`` without a
separator before it belongs to the value: ``URL=http://h?a=1`` is one pair. Quotes protect separators, and so
does JSON: a value that begins with ``[`` or ``{``.
"""

from __future__ import annotations

import contextlib
import enum
import functools
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

TRUE_WORDS = frozenset({"true", "yes", "on", "1", "t", "y"})
FALSE_WORDS = frozenset({"false", "no", "off", "0", "f", "n"})

#: Takes a type and a text or value, and returns the value of that type.
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

#: The types of a dataclass's fields, by name.
types_of = functools.cache(get_type_hints)


def is_union(tp: Any) -> bool:
    """Tell whether a type is a union, written either way."""
    return get_origin(tp) in (Union, types.UnionType)


def is_enum(tp: Any) -> bool:
    """Tell whether a type is an enumeration."""
    return isinstance(tp, type) and issubclass(tp, enum.Enum)


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


def holds_pairs(tp: Any) -> bool:
    """Tell whether values of a type are written as pairs, or are lists of such values."""
    inner = bare_type(list_item_type(tp) if is_list_type(tp) else tp)
    return is_dict_type(inner) or is_dataclass(inner)


def type_name(tp: Any) -> str:
    """Return a type as people write it."""
    args = get_args(tp)
    if is_union(tp):
        return " | ".join(map(type_name, args))
    if get_origin(tp) is Literal:
        return "|".join(map(str, args))
    if is_enum(tp):
        return "|".join(tp.__members__)
    if tp in (type(None), Ellipsis):
        return "None" if tp is type(None) else "..."
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
    try:
        if text.lstrip().startswith(("[", "{")):
            return from_value(tp, json.loads(text))
        return _container(tp, _parts(tp, text), from_text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConversionError(f"{text[:200]!r} is not JSON: {error}") from None
    except OptionParseError as error:
        raise ConversionError(error.message) from None


def from_value(tp: Any, value: Any) -> Any:
    """Check a value (of JSON, TOML or Python) against a type; lists become tuples where the type has those.

    Raises:
        ConversionError: it does not fit; the message says where.
    """
    if is_union(tp):
        return _first_fit(tp, get_args(tp), value, from_value)
    if container_of(tp) in (list, tuple) and isinstance(value, (list, tuple)):
        return _container(tp, value, from_value)
    if (container_of(tp) is dict or is_dataclass(tp)) and isinstance(value, Mapping):
        return _container(tp, value, from_value)
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


def _container(tp: Any, parts: Any, decode: Decoder) -> Any:
    """Return a list, tuple, dict or dataclass with its parts decoded."""
    container = container_of(tp)
    args = get_args(tp)
    if container is None:
        return _dataclass(tp, parts, decode)
    if container is dict:
        key_type, value_type = args or (Any, Any)
        return {
            _at(f"key {key!r}", decode, key_type, key): _at(f"[{key}]", decode, value_type, part)
            for key, part in parts.items()
        }
    types_of_items: Sequence[Any] = args
    if container is list or not args or args[-1] is Ellipsis:
        types_of_items = [args[0] if args else Any] * len(parts)
    elif len(args) != len(parts):
        raise ConversionError(f"{len(parts)} values where {type_name(tp)} takes {len(args)}")
    return container(
        _at(f"item {index + 1}" if decode is from_text else f"[{index}]", decode, item_type, part)
        for index, (item_type, part) in enumerate(zip(types_of_items, parts, strict=True))
    )


def _dataclass(tp: Any, parts: Mapping[str, Any], decode: Decoder) -> Any:
    init_fields = {field.name: field for field in fields(tp) if field.init}
    for name in parts:
        if name not in init_fields:
            raise ConversionError(
                f"{tp.__name__} has no field {name!r}. {did_you_mean(str(name), init_fields)}"
            )
    field_types = types_of(tp)
    values = {name: _at(name, decode, field_types[name], part) for name, part in parts.items()}
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


def _scalar_from_text(tp: Any, text: str) -> Any:
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
    if tp is type(None) and text in ("", "None"):
        return None
    return _checked_scalar(tp, text)


def _checked_scalar(tp: Any, value: Any) -> Any:
    if tp in (Any, object):
        return value
    if get_origin(tp) is Literal:
        choices = {str(choice): choice for choice in get_args(tp)}
        if str(value) in choices:
            return choices[str(value)]
        raise ConversionError(f"{value!r} is not a valid value. {did_you_mean(str(value), choices)}")
    if is_enum(tp):
        return value if isinstance(value, tp) else _enum_member(tp, str(value))
    if tp in (Path, PurePath) and isinstance(value, str):
        return tp(os.path.expanduser(value))
    if tp is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ConversionError("the number is too large") from None
    if isinstance(tp, type) and isinstance(value, tp) and (tp is bool or not isinstance(value, bool)):
        return value
    raise ConversionError(f"{value!r} is not of type {type_name(tp)}")


def _enum_member(tp: type[enum.Enum], text: str) -> enum.Enum:
    if text in tp.__members__:
        return tp[text]
    for member in tp:
        if str(member.value) == text or member.name.lower() == text.lower():
            return member
    raise ConversionError(f"{text!r} is not a valid value. {did_you_mean(text, tp.__members__)}")


# ---- how containers are typed

_DELIMITERS = ",;"
_EXAMPLE = "Example: queue=gpu,tags='a=b,c=d',items=x,y (quote a value that holds both ',' and '=')."
#: A quote or a bracket that begins a value; not the apostrophe in "don't".
_PROTECTED = re.compile(r"""(?:^|[=,;:])\s*(?P<quote>['"])|(?:^|=)\s*[\[{]""")
#: Ends a pair: the last separator before an "=", and before a plain name if it is a ";".
_END_OF_PAIR = re.compile(r",(?=[^,;=]*=)|;(?=\s*[\w./:-]+\s*=)")


def _parts(tp: Any, text: str) -> Any:
    """Split the text of a container into the texts of its parts."""
    container = container_of(tp)
    if container in (list, tuple):
        # values of pairs hold any ";", such as regular expressions do
        return split_items(text, "," if holds_pairs(tp) else _DELIMITERS)
    if container is None:
        return {name: unquote(value) for name, value in parse_pairs(text).items()}
    sign = next((char for char in text if char in "=:"), "")
    if sign == ":":
        pairs = [item.partition(":") for item in split_items(text)]
        for key, colon, value in pairs:
            if not colon or not key:
                raise ConversionError(f"{key + colon + value!r} is not of the form key:value")
        return {key.strip(): unquote(value.strip()) for key, _, value in pairs}
    if not sign and is_optional((get_args(tp) or (Any, Any))[1]):
        return dict.fromkeys(split_items(text), "None")
    return parse_dict(text)


def parse_pairs(text: str) -> dict[str, str]:
    """Split ``k=v,k2=v2`` into raw values; quotes are kept for `split_items` and `unquote`.

    Raises:
        OptionParseError: a key or a separator is missing, a quote is open, or a key stands twice.
    """
    if not text.strip():
        return {}
    masked = _masked(text)
    if "=" not in masked:
        raise OptionParseError(f"{text!r} holds no '='", hint=_EXAMPLE)
    pairs: dict[str, str] = {}
    for start, end in _spans(masked, _END_OF_PAIR):
        equals = masked.find("=", start, end)
        key = text[start:equals].strip()
        if equals < 0 or not key or any(d in key for d in _DELIMITERS):
            at = (equals if equals >= 0 else start) + 1
            raise OptionParseError(f"{text!r}, character {at}: no key before '='", hint=_EXAMPLE)
        if key in pairs:
            raise OptionParseError(f"{text!r}: {key!r} is given twice", hint=_EXAMPLE)
        pairs[key] = text[equals + 1 : end].strip()
    return pairs


def parse_dict(text: str) -> dict[str, str]:
    """Read the pairs of one dict, ``k=v,k2=v2``; values may hold ``=``, pairs and the whole may be quoted.

    Raises:
        OptionParseError: a key or a separator is missing, a quote is open, or a key stands twice.
    """
    text = text.strip()
    pairs: dict[str, str] = {}
    for part in split_items(text) if text[:1] in ("'", '"') else [text]:
        for key, value in parse_pairs(part).items():
            if key in pairs:
                raise OptionParseError(f"{text!r}: {key!r} is given twice", hint=_EXAMPLE)
            pairs[key] = unquote(value)
    return pairs


def split_items(text: str, separators: str = _DELIMITERS) -> list[str]:
    """Split ``a,b;c`` into its items, unquoted; empty items are left out.

    Of ``,`` and ``;``, what is not among the separators belongs to the items.

    Raises:
        OptionParseError: a quote is open.
    """
    spans = _spans(_masked(text), re.compile(f"[{separators}]"))
    items = [text[start:end].strip() for start, end in spans]
    return [unquote(item) for item in items if item]


def unquote(text: str) -> str:
    """Remove the quotes around a text, if it has any."""
    if len(text) >= 2 and text[0] in "'\"" and text[-1] == text[0]:
        return text[1:-1]
    return text


def _masked(text: str) -> str:
    """Return a text with its quoted and its JSON values blanked, so that only real separators are left."""
    masked, position = text, 0
    while match := _PROTECTED.search(masked, position):
        start, quote = match.end() - 1, match["quote"]
        position = start + 1
        if quote:
            position = text.find(quote, position) + 1
            if not position:
                problem = f"{text!r}, character {start + 1}: the quote is never closed"
                raise OptionParseError(problem, hint=_EXAMPLE)
        else:
            with contextlib.suppress(ValueError, RecursionError):  # a regular expression, such as [0-9]+
                _, position = json.JSONDecoder().raw_decode(text, start)
        if position > start + 1:
            masked = masked[:start] + "_" * (position - start) + masked[position:]
    return masked


def _spans(masked: str, separator: re.Pattern[str]) -> list[tuple[int, int]]:
    """Return where the parts between separators begin and end."""
    separators = [match.span() for match in separator.finditer(masked)]
    starts = [0, *(end for _, end in separators)]
    return list(zip(starts, [*(start for start, _ in separators), len(masked)], strict=True))
