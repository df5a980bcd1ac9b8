"""The arguments of a component: parsed from a command line, JSON or configuration.

The rules, for a command line:

- ``--name value``, ``--name=value``; hyphens, underscores and camel case are the same (``--mem-mb``: memMB).
- a one-letter parameter is ``-x value``, ``-x=value`` or, before a digit, ``-x4``.
- a bool is ``--flag``, ``--no-flag`` or ``--flag true|false|yes|no|on|off|1|0``.
- lists and dicts can be repeated; everything else stands at most once.
- ``*args`` begins at the first word that is not an option, or after ``--``; it is not interpreted.
- ``--help`` before that raises `HelpRequested`.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from shunter.components.parameters import Parameter
from shunter.errors import ComponentArgumentError, did_you_mean
from shunter.specs.conversion import (
    FALSE_WORDS,
    TRUE_WORDS,
    ConversionError,
    from_text,
    from_value,
    is_dict_type,
    snake_case,
    type_name,
)

_NUMBER = re.compile(r"-(\d|\.\d)")

#: The parameter that an option sets, the value attached to it, and whether it is the ``--no-`` form.
Match = tuple[Parameter, str | None, bool]


class HelpRequested(ComponentArgumentError):
    """``--help`` is among the arguments; the message is the help, the exit code 0."""

    exit_code = 0


class Options:
    """The options of a component: which word means which parameter."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = {p.name: p for p in parameters if not p.is_varargs}
        self.varargs = next((p for p in parameters if p.is_varargs), None)
        self.aliases = {alias: p for p in self.parameters.values() for alias in p.aliases}
        self.words = dict(self.parameters)
        for parameter in self.parameters.values():  # exact names win
            self.words.setdefault(snake_case(parameter.name), parameter)
        self.negations = {
            f"no_{word}": p for word, p in self.words.items() if p.is_flag and f"no_{word}" not in self.words
        }

    def by_name(self, name: str) -> Parameter | None:
        """Return the parameter of a name as written in a configuration or in JSON."""
        return self.words.get(name.replace("-", "_")) or self.words.get(snake_case(name))

    def match(self, token: str) -> Match | None:
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
        letter = self.parameters.get(token[1:2])
        if letter is None:
            return None
        if len(head) == 2:
            return letter, attached, False
        return (letter, token[2:], False) if token[2].isdigit() else None

    def spellings(self) -> list[str]:
        """Return the options as shown in suggestions and completion."""
        spellings = [p.options[0] for p in self.parameters.values()]
        return spellings + [f"--no-{p.options[0].lstrip('-')}" for p in self.negations.values()]


class Reader:
    """Reads the arguments of one call, and collects everything that is wrong with them.

    Attributes:
        problems: what is wrong.
        hints: what to do about it.
        attempted: the names of parameters whose value is missing or wrong.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.problems: list[str] = []
        self.hints: list[str] = []
        self.attempted: set[str] = set()

    # ---- a command line

    def read_words(self, args: Sequence[str]) -> dict[str, Any]:
        """Return the values in the words of a command line, by parameter name.

        Raises:
            HelpRequested: ``--help`` is among the options.
        """
        words = deque(args)
        texts: dict[str, list[str]] = {}
        varargs = self.options.varargs
        rest = None
        while words:
            word = words.popleft()
            if word == "--":
                rest = [*words]
                break
            if _is_option(word):
                self._read_option(word, words, texts)
            elif varargs is not None:
                rest = [word, *words]
                break
            else:
                self._unexpected(word)
        values = {}
        for name, parts in texts.items():
            parameter = self.options.parameters[name]
            try:
                values[name] = _from_texts(parameter, parts)
            except ConversionError as error:
                self._misfit(parameter, f"{parameter.options[0]}: {error}")
        if varargs is not None and rest is not None:
            values[varargs.name] = self._varargs(varargs, rest)
        elif rest:
            self.problems.append(f"unexpected arguments after '--': {' '.join(rest)}")
        return values

    def _read_option(self, word: str, words: deque[str], texts: dict[str, list[str]]) -> None:
        """Add the text of an option; its value is taken from the words that follow."""
        match = self.options.match(word)
        if match is None:
            self._unknown(word, words)
            return
        parameter, text, negated = match
        if negated:
            if text is not None:
                self.problems.append(f"{word.partition('=')[0]} takes no value")
                return
            text = "false"
        elif text is None and parameter.is_flag:
            text = words.popleft() if self._is_value_of_flag(words) else "true"
        elif text is None:
            if not words or self._begins_option(words[0]):
                self.problems.append(f"{word} needs a value ({type_name(parameter.type)})")
                if words and words[0] != "--":
                    self.hints.append(f"If {words[0]} is the value, write {word}={words[0]}.")
                self.attempted.add(parameter.name)
                return
            text = words.popleft()
        parts = texts.setdefault(parameter.name, [])
        if parts and not parameter.is_repeatable:
            self.problems.append(f"{parameter.options[0]} is given twice ({parts[0]!r} and {text!r})")
        parts.append(text)

    def _is_value_of_flag(self, words: deque[str]) -> bool:
        """Tell whether the next word must be the value of a flag, or looks like one."""
        if not words or words[0].startswith("-"):
            return False
        return words[0].lower() in TRUE_WORDS | FALSE_WORDS or self.options.varargs is None

    def _begins_option(self, word: str) -> bool:
        if word == "--":
            return True
        return _is_option(word) and (word.startswith("--") or self.options.match(word) is not None)

    def _unexpected(self, word: str) -> None:
        self.problems.append(f"unexpected argument {word!r}")
        example = next(iter(self.options.spellings()), None)
        self.hints.append(
            f"Give values as options, such as {example} {word}." if example else "It takes no arguments."
        )

    def _unknown(self, word: str, words: deque[str]) -> None:
        """Note an unknown option; what follows it is taken for its value."""
        head, equals, _ = word.partition("=")
        if head == "--help":
            raise HelpRequested("help was asked for")
        self.problems.append(f"unknown option {head}")
        self.hints.append(did_you_mean(head, [*self.options.spellings(), "--help"]))
        if len(head) > 2 and head[1] in self.options.parameters:
            self.hints.append(f"For {head[:2]}, separate the value: {head[:2]} {head[2:]}.")
        if self.options.varargs is not None:
            self.hints.append("Write arguments of the program itself after '--'.")
        if not equals and words and not words[0].startswith("-"):
            words.popleft()

    def _varargs(self, parameter: Parameter, texts: Sequence[str]) -> tuple[Any, ...]:
        items = []
        for position, text in enumerate(texts, 1):
            try:
                items.append(from_text(parameter.type, text))
            except ConversionError as error:
                self._misfit(parameter, f"argument {position} of {parameter.name}: {error}")
        return tuple(items)

    def _misfit(self, parameter: Parameter, problem: str) -> None:
        self.problems.append(f"{problem} (expected {type_name(parameter.type)})")
        self.attempted.add(parameter.name)

    # ---- values by name

    def read_mapping(self, named: Mapping[str, Any], *, kind: str, as_text: bool) -> dict[str, Any]:
        """Return values by parameter name, converted from JSON values or texts.

        Args:
            named: the values.
            kind: names their source in messages, such as "default".
            as_text: whether texts are parsed as on a command line, where "None" is None: in configuration
                files all values may be texts.
        """
        values: dict[str, Any] = {}
        varargs = self.options.varargs
        for name, value in named.items():
            parameter = self.options.by_name(name)
            if parameter is None and varargs is not None and name.lstrip("*") == varargs.name:
                parameter = varargs
            if parameter is None:
                self.problems.append(f"unknown {kind} {name!r}")
                names = [*self.options.parameters, *([varargs.name] if varargs else [])]
                self.hints.append(did_you_mean(name, names))
                continue
            try:
                values[parameter.name] = _from_named(parameter, value, as_text=as_text)
            except ConversionError as error:
                self._misfit(parameter, f"{kind} {name}: {error}")
        return values


def _is_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not _NUMBER.match(word)


def _from_texts(parameter: Parameter, texts: Sequence[str]) -> Any:
    """Convert the texts of one parameter; repeated lists and dicts are joined.

    Raises:
        ConversionError: a text does not fit the type.
    """
    values = [from_text(parameter.type, text) for text in texts]
    if len(values) == 1 or not parameter.is_repeatable:
        return values[-1]
    parts = [value for value in values if value is not None]
    if is_dict_type(parameter.type):
        return {key: item for part in parts for key, item in part.items()}
    return [item for part in parts for item in part]


def _from_named(parameter: Parameter, value: Any, *, as_text: bool) -> Any:
    if parameter.is_varargs:
        return _varargs_from_value(parameter, value)
    if isinstance(value, str) and as_text:
        return from_text(parameter.type, value)
    try:
        return from_value(parameter.type, value)
    except ConversionError:
        if isinstance(value, str):
            return from_text(parameter.type, value)
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
