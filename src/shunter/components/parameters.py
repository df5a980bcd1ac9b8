"""A function's signature, read as the options of a command line."""

from __future__ import annotations

import enum
import inspect
import re
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from shunter.specs.conversion import (
    ConversionError,
    bare_type,
    container_of,
    from_value,
    is_enum,
    is_optional,
    is_union,
    snake_case,
    type_name,
)

SUPPORTED_TYPES = (
    "str, int, float, bool, Path, Literal, Enum, dataclasses, "
    "and list, dict, tuple, Optional and unions of those"
)
_SCALARS = (str, int, float, bool, object, type(None), Any, Ellipsis, Path, PurePath)
_ALIAS = re.compile(r"--?[A-Za-z][\w-]*")
_EMPTY = inspect.Parameter.empty


class SignatureError(ValueError):
    """A signature cannot be a command line; its arguments describe everything that is wrong with it."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a component.

    Args:
        name: its name in the signature.
        type: its type; of ``*args``, the type of one item.
        default: its default, or ``inspect.Parameter.empty``.
        kind: how it is passed, as ``inspect.Parameter.kind``.
        aliases: further options, such as ``-cn``, from ``Annotated[str, "-cn"]``.
        note: help from ``Annotated[str, "what it is"]``; the docstring's comes first.
    """

    name: str
    type: Any
    default: Any = _EMPTY
    kind: Any = inspect.Parameter.KEYWORD_ONLY
    aliases: tuple[str, ...] = ()
    note: str = ""

    @property
    def is_varargs(self) -> bool:
        """Whether it takes all that follows (``*args``)."""
        return bool(self.kind is inspect.Parameter.VAR_POSITIONAL)

    @property
    def required(self) -> bool:
        """Whether a call must have a value for it."""
        return self.default is _EMPTY and not self.is_varargs

    @property
    def is_flag(self) -> bool:
        """Whether ``--name`` alone means true and ``--no-name`` false."""
        return bare_type(self.type) is bool

    @property
    def is_repeatable(self) -> bool:
        """Whether its option can stand several times, the values being joined."""
        return container_of(self.type) in (list, dict)

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that it accepts, if they are few: of a Literal, an Enum or a bool."""
        bare = bare_type(self.type)
        if bare is bool:
            return ("true", "false")
        if get_origin(bare) is Literal:
            return tuple(map(str, get_args(bare)))
        return tuple(bare.__members__) if is_enum(bare) else ()

    @property
    def options(self) -> tuple[str, ...]:
        """The ways to write its option; the first is the one to show. Empty for ``*args``."""
        if self.is_varargs:
            return ()
        if len(self.name) == 1:
            return (f"-{self.name}", f"--{self.name}", *self.aliases)
        snake = snake_case(self.name)
        spellings = (snake.replace("_", "-"), self.name, snake, self.name.replace("_", "-"))
        return (*dict.fromkeys(f"--{spelling}" for spelling in spellings), *self.aliases)


class Options:
    """The options of a component: which word means which parameter."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = {p.name: p for p in parameters if not p.is_varargs}
        self.varargs = next((p for p in parameters if p.is_varargs), None)
        self.aliases = {alias: p for p in self.parameters.values() for alias in p.aliases}
        # exact names win
        self.words = {snake_case(name): p for name, p in self.parameters.items()} | self.parameters

    def by_name(self, name: str) -> Parameter | None:
        """Return the parameter of a name as written in a configuration or in JSON."""
        return self.words.get(name.replace("-", "_")) or self.words.get(snake_case(name))

    def match(self, token: str) -> tuple[Parameter, str | None, bool] | None:
        """Return parameter, attached value, and whether it is the ``--no-`` form, of a known option."""
        head, equals, value = token.partition("=")
        attached = value if equals else None
        parameter = self.aliases.get(head) or (self.by_name(head[2:]) if head.startswith("--") else None)
        if parameter is not None:
            return parameter, attached, False
        if head.startswith(("--no-", "--no_")):
            parameter = self.by_name(head[5:])
            return (parameter, attached, True) if parameter is not None and parameter.is_flag else None
        letter = self.parameters.get(head[1:2]) if head.startswith("-") else None
        if letter is None or (len(head) > 2 and not head[2].isdigit()):
            return None
        return letter, attached if len(head) == 2 else token[2:], False

    def spellings(self) -> list[str]:
        """Return the options as shown in suggestions."""
        flags = [f"--no-{p.options[0].lstrip('-')}" for p in self.parameters.values() if p.is_flag]
        return [p.options[0] for p in self.parameters.values()] + flags


def read_parameters(fn: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Read the parameters of a function.

    Raises:
        SignatureError: some are not annotated, or are of types that have no text; it lists them all.
    """
    parameters: list[Parameter] = []
    problems: list[str] = []
    for raw in inspect.signature(fn).parameters.values():
        try:
            parameters.append(_read_parameter(raw, _evaluated(fn, raw)))
        except SignatureError as error:
            problems += error.args
    if problems:
        raise SignatureError(*problems)
    return tuple(parameters)


def _evaluated(fn: Callable[..., Any], raw: inspect.Parameter) -> Any:
    """Return an annotation as a type, also when it is postponed (a text)."""
    holder = types.SimpleNamespace(__annotations__={"it": raw.annotation})
    names = getattr(inspect.unwrap(fn), "__globals__", {})
    try:
        return get_type_hints(holder, globalns=names, include_extras=True)["it"]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, NameError):
            reason = f"{error}; names imported under TYPE_CHECKING are not there when it runs"
        text = f"the annotation of {raw.name!r} cannot be read ({raw.annotation!r}): {reason}"
        raise SignatureError(text) from None


def _read_parameter(raw: inspect.Parameter, annotation: Any) -> Parameter:
    if raw.kind is raw.VAR_KEYWORD:
        raise SignatureError(f"**{raw.name} cannot be written on a command line")
    if annotation is _EMPTY:
        if raw.kind is raw.VAR_POSITIONAL:
            return Parameter(raw.name, str, kind=raw.kind)
        raise SignatureError(f"the parameter {raw.name!r} has no type annotation")
    texts = [text for text in getattr(annotation, "__metadata__", ()) if isinstance(text, str)]
    aliases = tuple(text for text in texts if _ALIAS.fullmatch(text))
    note = " ".join(text for text in texts if text not in aliases)
    tp = _plain(annotation)
    if raw.default is None and not is_optional(tp) and tp not in (Any, object):
        tp = Union[tp, None]  # noqa: UP007 - ``x: int = None`` means it
    misfit = next(_unsupported_parts(tp, ()), None)
    if misfit is not None:
        text = f"values of type {type_name(misfit)} cannot be given as arguments (use {SUPPORTED_TYPES})"
        raise SignatureError(f"the parameter {raw.name!r}: {text}")
    try:
        if raw.default is not _EMPTY:
            from_value(tp, raw.default)
    except ConversionError as error:
        text = f"the default of {raw.name!r} does not fit its type {type_name(tp)}: {error}"
        raise SignatureError(text) from None
    return Parameter(raw.name, tp, raw.default, raw.kind, aliases, note)


def _plain(tp: Any) -> Any:
    """Return a type without Annotated, NewType and ``type X = ...`` around or in it."""
    if get_origin(tp) is Annotated:
        return _plain(tp.__origin__)
    if hasattr(tp, "__supertype__"):  # NewType
        return _plain(tp.__supertype__)
    if type(tp).__name__ == "TypeAliasType":  # Python 3.12
        return _plain(tp.__value__)
    args = tuple(_plain(arg) for arg in get_args(tp))
    if args == get_args(tp):
        return tp
    return Union[args] if is_union(tp) else get_origin(tp)[args]  # noqa: UP007 - made at run time


def _unsupported_parts(tp: Any, outer: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the types in a type for whose values no text can stand."""
    if tp in _SCALARS or is_enum(tp) or tp in outer:
        return
    if get_origin(tp) is Literal:
        if not all(isinstance(choice, (str, int, enum.Enum, type(None))) for choice in get_args(tp)):
            yield tp
    elif is_dataclass(tp) and isinstance(tp, type):
        try:
            hints = get_type_hints(tp)
        except Exception:
            yield tp
            return
        for field in fields(tp):
            if field.init:
                yield from _unsupported_parts(hints[field.name], (*outer, tp))
    elif is_union(tp) or container_of(tp):
        for arg in get_args(tp):
            yield from _unsupported_parts(arg, outer)
    else:
        yield tp
