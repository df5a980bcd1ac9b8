"""A function's signature, read as command line parameters."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from shunter.specs.conversion import (
    ConversionError,
    bare_type,
    from_value,
    is_dict_type,
    is_list_type,
    is_optional,
    is_path_type,
    snake_case,
    type_name,
)
from shunter.specs.typehints import (
    class_hints,
    evaluate,
    get_args,
    get_origin,
    is_annotated,
    is_any,
    is_literal,
    is_union,
    make_union,
)

SUPPORTED_TYPES = (
    "str, int, float, bool, Path, Literal, Enum, dataclasses, "
    "and list, dict, tuple, Optional and unions of those"
)
_SCALARS = (str, int, float, bool, object, type(None))
_CONTAINERS = (list, tuple, dict, Sequence, MutableSequence, Mapping, MutableMapping)


class REQUIRED:
    """The default of a parameter that has none."""


class Kind(enum.Enum):
    """How a parameter is given; the members are those of ``inspect.Parameter.kind``."""

    POSITIONAL_ONLY = "positional-only"
    POSITIONAL_OR_KEYWORD = "positional or keyword"
    VAR_POSITIONAL = "*args"
    KEYWORD_ONLY = "keyword-only"
    VAR_KEYWORD = "**kwargs"


class SignatureError(Exception):
    """A signature cannot be a command line. ``problems`` holds (parameter name, description) pairs."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(text for _, text in problems))
        self.problems = problems


@dataclass(frozen=True)
class Parameter:
    """One parameter of a component.

    Args:
        name: its name in the signature.
        type: its type; of ``*args``, the type of one item.
        default: its default, or `REQUIRED`.
        kind: how it is given.
        aliases: further options, such as ``-cn``, from ``Annotated[str, "-cn"]``.
        note: help from ``Annotated[str, "what it is"]``; the docstring's comes first.
    """

    name: str
    type: Any
    default: Any = REQUIRED
    kind: Kind = Kind.KEYWORD_ONLY
    aliases: tuple[str, ...] = ()
    note: str = ""

    @property
    def is_varargs(self) -> bool:
        """Whether it takes all that follows (``*args``)."""
        return self.kind is Kind.VAR_POSITIONAL

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is REQUIRED and not self.is_varargs

    @property
    def is_flag(self) -> bool:
        """Whether ``--name`` alone means true and ``--no-name`` false."""
        return bare_type(self.type) is bool

    @property
    def is_repeatable(self) -> bool:
        """Whether its option can stand several times, the values being joined."""
        return is_list_type(self.type) or is_dict_type(self.type)

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that it accepts, if they are few: of a Literal, an Enum or a bool."""
        bare = bare_type(self.type)
        if bare is bool:
            return ("true", "false")
        if is_literal(bare):
            return tuple(str(choice) for choice in get_args(bare))
        if isinstance(bare, type) and issubclass(bare, enum.Enum):
            return tuple(bare.__members__)
        return ()

    @property
    def options(self) -> tuple[str, ...]:
        """The ways to write its option; the first is the one to show. Empty for ``*args``."""
        if self.is_varargs:
            return ()
        if len(self.name) == 1:
            return (f"-{self.name}", f"--{self.name}", *self.aliases)
        snake = snake_case(self.name)
        forms = (snake.replace("_", "-"), self.name, snake, self.name.replace("_", "-"))
        return tuple(dict.fromkeys([f"--{form}" for form in forms] + list(self.aliases)))

    def default_copy(self) -> Any:
        """Return the default, never the object itself that the function holds."""
        return deepcopy(self.default)


def read_parameters(fn: Callable[..., Any]) -> tuple[Parameter, ...]:
    """Read the parameters of a function.

    Raises:
        SignatureError: some are not annotated, or are of types that have no text; it lists them all.
    """
    parameters, problems = [], []
    for raw in _signature(fn):
        try:
            parameters.append(_read_parameter(fn, raw))
        except SignatureError as error:
            problems += error.problems
    if problems:
        raise SignatureError(problems)
    return tuple(parameters)


def unwrapped(fn: Any) -> Any:
    """Return the function below decorators that keep it as ``__wrapped__``."""
    while hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    return fn


class _Raw:
    """A parameter as the function declares it. Without an annotation that is `REQUIRED`."""

    def __init__(self, name: str, kind: Kind, default: Any, annotation: Any) -> None:
        self.name, self.kind, self.default, self.annotation = name, kind, default, annotation


def _signature(fn: Callable[..., Any]) -> list[_Raw]:
    empty = inspect.Parameter.empty
    return [
        _Raw(
            raw.name,
            Kind[raw.kind.name],
            REQUIRED if raw.default is empty else raw.default,
            REQUIRED if raw.annotation is empty else raw.annotation,
        )
        for raw in inspect.signature(fn).parameters.values()
    ]


def _read_parameter(fn: Callable[..., Any], raw: _Raw) -> Parameter:
    if raw.kind is Kind.VAR_KEYWORD:
        raise SignatureError([(raw.name, f"**{raw.name} cannot be written on a command line")])
    varargs = raw.kind is Kind.VAR_POSITIONAL
    if raw.annotation is REQUIRED:
        if not varargs:
            raise SignatureError([(raw.name, f"the parameter {raw.name!r} has no type annotation")])
        return Parameter(raw.name, str, kind=raw.kind)
    annotation = _resolve(fn, raw)
    aliases: tuple[str, ...] = ()
    note = ""
    if is_annotated(annotation):
        texts = [extra for extra in annotation.__metadata__ if isinstance(extra, str)]
        aliases = tuple(text for text in texts if re.fullmatch(r"--?[A-Za-z][\w-]*", text))
        note = " ".join(text for text in texts if text not in aliases)
    tp = _plain(annotation)
    if raw.default is None and not is_optional(tp) and not (is_any(tp) or tp is object):
        tp = make_union((tp, type(None)))  # ``x: int = None`` means it
    problem = unsupported(tp)
    if problem:
        raise SignatureError([(raw.name, f"the parameter {raw.name!r}: {problem}")])
    if raw.default is not REQUIRED:
        _check_default(raw, tp)
    return Parameter(raw.name, tp, raw.default, raw.kind, aliases, note)


def _resolve(fn: Callable[..., Any], raw: _Raw) -> Any:
    """Return the annotation as a type, also when it is postponed (a text)."""
    try:
        return evaluate(raw.annotation, getattr(unwrapped(fn), "__globals__", {}))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, NameError):
            reason = f"{error}; names imported under TYPE_CHECKING are not there when it runs"
        text = f"the annotation of {raw.name!r} cannot be read ({raw.annotation!r}): {reason}"
        raise SignatureError([(raw.name, text)]) from None


def _plain(tp: Any) -> Any:
    """Return a type without Annotated, NewType and ``type X = ...`` around or in it."""
    if is_annotated(tp):
        return _plain(get_args(tp)[0])
    if type(tp).__name__ == "NewType":
        return _plain(tp.__supertype__)
    if type(tp).__name__ == "TypeAliasType":  # Python 3.12
        return _plain(tp.__value__)
    origin, args = get_origin(tp), tuple(_plain(arg) for arg in get_args(tp))
    if is_union(tp):
        return make_union(args) if args != get_args(tp) else tp
    if origin in _CONTAINERS and args != get_args(tp):
        return origin[args]
    return tp


def _check_default(raw: _Raw, tp: Any) -> None:
    try:
        from_value(tp, raw.default)
    except ConversionError as error:
        text = f"the default of {raw.name!r} does not fit its type {type_name(tp)}: {error}"
        raise SignatureError([(raw.name, text)]) from None


def unsupported(tp: Any) -> str:
    """Return why no text can stand for values of a type, or nothing if one can."""
    wrong = next(_unsupported_parts(tp, ()), None)
    if wrong is None:
        return ""
    return f"values of type {type_name(wrong)} cannot be given as arguments (use {SUPPORTED_TYPES})"


def _unsupported_parts(tp: Any, outer: tuple[Any, ...]) -> Iterator[Any]:
    if is_any(tp) or tp is Ellipsis or tp in _SCALARS or is_path_type(tp) or tp in outer:
        return
    origin = get_origin(tp)
    if is_literal(tp):
        yield from (
            tp for choice in get_args(tp) if not isinstance(choice, (str, int, enum.Enum, type(None)))
        )
    elif is_dataclass(tp) and isinstance(tp, type):
        try:
            hints = class_hints(tp)
        except Exception:
            yield tp
            return
        for field in fields(tp):
            if field.init:
                yield from _unsupported_parts(hints[field.name], (*outer, tp))
    elif is_union(tp) or (origin or tp) in _CONTAINERS:
        for arg in get_args(tp):
            yield from _unsupported_parts(arg, outer)
    elif not (isinstance(tp, type) and issubclass(tp, enum.Enum)):
        yield tp
