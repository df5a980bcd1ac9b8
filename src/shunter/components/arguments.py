"""The arguments of a component: parsed from a command line, JSON or configuration.

The rules, for a command line:

- ``--name value``, ``--name=value``; hyphens, underscores and camel case are the same (``--mem-mb``: memMB).
- a one-letter parameter is ``-x value``, ``-x=value`` or, before a digit, ``-x4``.
- a bool is ``--flag``, ``--no-flag`` or ``--flag true|false|yes|no|on|off|1|0``.
- lists and dicts can be repeated; everything else may be given once.
- ``*args`` begins at the first word that is not an option, or after ``--``; it is not interpreted.
- ``--help`` before that raises `HelpRequested`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from shunter.components.parameters import Parameter
from shunter.errors import ComponentArgumentError, did_you_mean
from shunter.specs.conversion import (
    FALSE_WORDS,
    TRUE_WORDS,
    ConversionError,
    bare_type,
    from_text,
    from_value,
    is_dict_type,
    snake_case,
    type_name,
)
from shunter.specs.typehints import get_args

_NUMBER = re.compile(r"-(\d|\.\d)")


class HelpRequested(ComponentArgumentError):
    """``--help`` is among the arguments; the message is the help, the exit code 0."""

    exit_code = 0


class Options:
    """The options of a component: which word means which parameter."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = {p.name: p for p in parameters if not p.is_varargs}
        self.varargs = next((p for p in parameters if p.is_varargs), None)
        self.letters = {p.name: p for p in self.parameters.values() if len(p.name) == 1}
        self.words: dict[str, Parameter] = {}
        self.aliases: dict[str, Parameter] = {}
        for parameter in self.parameters.values():
            self.words.setdefault(parameter.name, parameter)
            self.aliases.update(dict.fromkeys(parameter.aliases, parameter))
        for parameter in self.parameters.values():  # after all exact names, which win
            self.words.setdefault(snake_case(parameter.name), parameter)
        self.negations = {
            f"no_{word}": p for word, p in self.words.items() if p.is_flag and f"no_{word}" not in self.words
        }

    def by_name(self, name: str) -> Parameter | None:
        """Return the parameter of a name as written in a configuration or in JSON."""
        key = name.replace("-", "_")
        return self.words.get(key) or self.words.get(snake_case(name))

    def match(self, token: str) -> tuple[Parameter, str | None, bool] | None:
        """Return (parameter, attached value, negated) for a word that is a known option."""
        head, equals, value = token.partition("=")
        attached = value if equals else None
        if head in self.aliases:
            return self.aliases[head], attached, False
        if head.startswith("--"):
            parameter = self.by_name(head[2:])
            if parameter is not None:
                return parameter, attached, False
            negation = self.negations.get(head[2:].replace("-", "_"))
            return None if negation is None else (negation, attached, True)
        letter = self.letters.get(token[1:2])
        if letter is None:
            return None
        if len(head) == 2:
            return letter, attached, False
        return (letter, token[2:], False) if token[2].isdigit() else None

    def spellings(self) -> list[str]:
        """Return the options as shown in suggestions and completion."""
        shown = [p.options[0] for p in self.parameters.values()]
        return shown + [f"--no-{p.options[0].lstrip('-')}" for p in self.negations.values()]


class Given:
    """The texts that a command line gave, and the problems of all that was given."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}
        self.rest: list[str] | None = None
        self.problems: list[str] = []
        self.hints: list[str] = []


def scan(options: Options, args: Sequence[str], given: Given) -> None:
    """Assign the words of a command line to parameters.

    Raises:
        HelpRequested: ``--help`` is among the options.
    """
    position = 0
    while position < len(args):
        token = args[position]
        position += 1
        if token == "--":
            _read_rest(options, given, args[position:])
            break
        if not _is_option(token):
            if options.varargs is not None:
                given.rest = list(args[position - 1 :])
                break
            _unexpected(options, given, token)
            continue
        matched = options.match(token)
        if matched is None:
            position += _unknown(options, given, token, args[position:])
            continue
        position += _read_value(options, given, token, matched, args[position:])


def _is_option(token: str) -> bool:
    return len(token) > 1 and token[0] == "-" and not _NUMBER.match(token)


def _read_rest(options: Options, given: Given, rest: Sequence[str]) -> None:
    if options.varargs is not None:
        given.rest = list(rest)
    elif rest:
        given.problems.append(f"unexpected arguments after '--': {' '.join(rest)}")


def _unexpected(options: Options, given: Given, token: str) -> None:
    given.problems.append(f"unexpected argument {token!r}")
    example = next(iter(options.spellings()), None)
    given.hints.append(
        f"Give values as options, such as {example} {token}." if example else "It takes no arguments."
    )


def _unknown(options: Options, given: Given, token: str, following: Sequence[str]) -> int:
    """Record an unknown option; return how many of the following words are its value."""
    head, equals, _ = token.partition("=")
    if head == "--help":
        raise HelpRequested("help was asked for")
    given.problems.append(f"unknown option {head}")
    given.hints.append(did_you_mean(head, [*options.spellings(), "--help"]))
    if len(head) > 2 and head[1] != "-" and head[1] in options.letters:
        given.hints.append(f"For {head[:2]}, separate the value: {head[:2]} {head[2:]}.")
    if options.varargs is not None:
        given.hints.append("Write arguments of the program itself after '--'.")
    return int(not equals and bool(following) and not following[0].startswith("-"))


def _read_value(
    options: Options,
    given: Given,
    token: str,
    matched: tuple[Parameter, str | None, bool],
    following: Sequence[str],
) -> int:
    """Record a known option; return how many of the following words are its value."""
    parameter, value, negated = matched
    taken = 0
    if negated:
        if value is not None:
            given.problems.append(f"{token.partition('=')[0]} takes no value")
            return 0
        value = "false"
    elif value is None and parameter.is_flag:
        value, taken = _flag_value(options, following)
    elif value is None:
        if not following or _begins_option(options, following[0]):
            given.problems.append(f"{token} needs a value ({type_name(parameter.type)})")
            if following and following[0] != "--":
                given.hints.append(f"If {following[0]} is the value, write {token}={following[0]}.")
            given.texts.setdefault(parameter.name, [])  # so that it is not reported as missing too
            return 0
        value, taken = following[0], 1
    texts = given.texts.setdefault(parameter.name, [])
    if texts and not parameter.is_repeatable:
        given.problems.append(f"{parameter.options[0]} is given twice ({texts[0]!r} and {value!r})")
    texts.append(value)
    return taken


def _flag_value(options: Options, following: Sequence[str]) -> tuple[str, int]:
    """A flag uses the next word if that must be its value, or looks like one."""
    if following and not following[0].startswith("-"):
        looks_like_one = following[0].lower() in TRUE_WORDS | FALSE_WORDS
        if looks_like_one or options.varargs is None:
            return following[0], 1
    return "true", 0


def _begins_option(options: Options, token: str) -> bool:
    if token == "--" or not _is_option(token):
        return token == "--"
    return token.startswith("--") or options.match(token) is not None


# ---- values


def decode_given(options: Options, given: Given) -> dict[str, Any]:
    """Convert the texts that were given; problems are added to ``given``."""
    values: dict[str, Any] = {}
    for name, texts in given.texts.items():
        parameter = options.parameters[name]
        try:
            values[name] = decode_texts(parameter, texts) if texts else None
        except ConversionError as error:
            given.problems.append(f"{parameter.options[0]}: {error}{_expected(parameter)}")
    if options.varargs is not None and given.rest is not None:
        values[options.varargs.name] = _decode_rest(options.varargs, given)
    return values


def decode_texts(parameter: Parameter, texts: Sequence[str]) -> Any:
    """Convert the texts of one parameter; repeated lists and dicts are joined.

    Raises:
        ConversionError: a text does not fit the type.
    """
    values = [_decode_text(parameter, text) for text in texts]
    if len(values) == 1 or not parameter.is_repeatable:
        return values[-1]
    parts = [value for value in values if value is not None]
    if is_dict_type(parameter.type):
        return {key: item for part in parts for key, item in part.items()}
    return [item for part in parts for item in part]


def _decode_text(parameter: Parameter, text: str) -> Any:
    if is_dict_type(parameter.type) and "=" in text and not any(sign in text for sign in ",;{[\"'"):
        # one pair: its value may hold '=', as in --env XLA_FLAGS=--xla_gpu_strict=true
        key, _, value = text.partition("=")
        key_type, value_type = get_args(bare_type(parameter.type)) or (str, str)
        if key.strip() and ":" not in key:
            return {from_text(key_type, key.strip()): from_text(value_type, value.strip())}
    return from_text(parameter.type, text)


def _decode_rest(parameter: Parameter, given: Given) -> tuple[Any, ...]:
    items = []
    for position, text in enumerate(given.rest or (), 1):
        try:
            items.append(from_text(parameter.type, text))
        except ConversionError as error:
            given.problems.append(f"argument {position} of {parameter.name}: {error}{_expected(parameter)}")
    return tuple(items)


def _expected(parameter: Parameter) -> str:
    return f" (expected {type_name(parameter.type)})"


def decode_mapping(
    options: Options, named: Mapping[str, Any], given: Given, *, kind: str, as_text: bool
) -> dict[str, Any]:
    """Convert values by name: JSON values, or texts; problems are added to ``given``.

    ``kind`` names their source in messages, such as "default". With ``as_text`` (configuration files, where
    all values may be strings) strings are parsed as on a command line: "None" is None.
    """
    values: dict[str, Any] = {}
    for name, value in named.items():
        parameter = options.by_name(name)
        varargs = options.varargs
        if parameter is None and varargs is not None and name in (varargs.name, f"*{varargs.name}"):
            parameter = varargs
        if parameter is None:
            given.problems.append(f"unknown {kind} {name!r}")
            names = [*options.parameters, *([varargs.name] if varargs else [])]
            given.hints.append(did_you_mean(name, names))
            continue
        try:
            values[parameter.name] = _from_mapping(parameter, value, as_text=as_text)
        except ConversionError as error:
            given.problems.append(f"{kind} {name}: {error}{_expected(parameter)}")
    return values


def _from_mapping(parameter: Parameter, value: Any, *, as_text: bool) -> Any:
    if parameter.is_varargs:
        return _varargs_from_value(parameter, value)
    if as_text and isinstance(value, str):
        return decode_texts(parameter, [value])
    try:
        return from_value(parameter.type, value)
    except ConversionError:
        if isinstance(value, str):
            return decode_texts(parameter, [value])
        raise


def _varargs_from_value(parameter: Parameter, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            raise ConversionError(f"{value!r}: {error}") from None
    if not isinstance(value, (list, tuple)):
        raise ConversionError(f"{value!r} is not a list")
    return tuple(
        from_text(parameter.type, item) if isinstance(item, str) else from_value(parameter.type, item)
        for item in value
    )
