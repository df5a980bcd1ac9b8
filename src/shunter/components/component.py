"""A component: a function that makes a job, called with arguments from a command line, JSON or files.

The rules, for a command line:

- ``--name value``, ``--name=value``; hyphens, underscores and camel case are the same (``--mem-mb``: memMB).
- a one-letter parameter is ``-x value``, ``-x=value`` or, before a digit, ``-x4``.
- a bool is ``--flag``, ``--no-flag`` or ``--flag true|false|yes|no|on|off|1|0``.
- lists and dicts can be repeated; everything else stands at most once.
- ``*args`` begins at the first word that is not an option, or after ``--``; it is not interpreted.
- ``--help`` before that raises `HelpRequested`.
"""

from __future__ import annotations

import inspect
import re
import shlex
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from shunter.components.component_help import help_text
from shunter.components.parameters import Options, Parameter, SignatureError, read_parameters
from shunter.errors import (
    ComponentArgumentError,
    ComponentValidationException,
    ConfigError,
    ShunterError,
    did_you_mean,
)
from shunter.specs.app import AppDef
from shunter.specs.conversion import (
    FALSE_WORDS,
    TRUE_WORDS,
    ConversionError,
    from_text,
    from_value,
    is_dict_type,
    type_name,
)
from shunter.specs.translation import our_app

_NUMBER = re.compile(r"-(\d|\.\d)")


class HelpRequested(ComponentArgumentError):
    """``--help`` is among the arguments; the message is the help, the exit code 0."""

    exit_code = 0


class ComponentArgs(NamedTuple):
    """The arguments of a call: positional ones, those of ``*args``, and keyword-only ones."""

    positional_args: dict[str, Any]
    var_args: list[Any]
    kwargs: dict[str, Any]


@dataclass(eq=False)
class Component:
    """A function that makes a job, under the name by which it was found.

    Args:
        name: as written after ``shunter run``: ``utils.echo``, ``jobs.py:train``, ``./train.py``.
        fn: the function; it returns an `AppDef`.
        origin: "builtin", a file, a module, or an entry point.
        config_name: the name of its defaults in the configuration; by default ``name`` (a plain script uses
            those of ``train.script``).
        preset: fixed arguments. If there are any, the whole command line becomes ``*args``.
    """

    name: str
    fn: Callable[..., AppDef]
    origin: str = ""
    config_name: str = ""
    preset: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config_name = self.config_name or self.name

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters in the order of the signature; for help and shell completion.

        Raises:
            ComponentValidationException: the signature cannot be a command line; lists all problems.
        """
        try:
            return read_parameters(self.fn)
        except SignatureError as error:
            lines = "".join(f"\n  {_location(self.fn)}: {text}" for text in error.args)
            raise ComponentValidationException(
                f"the component {self.name} cannot be used:{lines}",
                hint="Annotate each parameter with a type that can be written as text.",
            ) from None

    @cached_property
    def options(self) -> Options:
        """The options of its command line."""
        return Options(self.parameters)

    @property
    def fn_name(self) -> str:
        """The function's own name."""
        return getattr(self.fn, "__name__", self.name)

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (self.fn.__doc__ or "").strip().partition("\n")[0].strip()

    #: The same, under TorchX's name.
    description = summary

    def parse(
        self, args: Sequence[str] | Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> AppDef:
        """Make the job.

        Args:
            args: words of a command line, or values by parameter name (JSON values or strings).
            defaults: configured values by parameter name; they override the signature's defaults.

        Raises:
            ComponentArgumentError: arguments are unknown, missing or of the wrong type; lists all of them.
            HelpRequested: ``--help`` is among the options (its exit code is 0, its message is the help).
            ComponentValidationException: the signature is unusable, or the result is not an `AppDef`.
            ConfigError: the function raised an exception.
        """
        return self.call(self.bind(args, defaults))

    def bind(
        self, args: Sequence[str] | Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the value of every parameter. Takes and raises what `parse` does."""
        reader = _Reader(self.options)
        values = reader.read_mapping(defaults or {}, "default", as_text=True)
        if isinstance(args, Mapping):
            values |= reader.read_mapping(args, "argument", as_text=False)
        else:
            try:
                values |= reader.read_words(["--", *args] if self.preset else args)
            except HelpRequested:
                raise HelpRequested(self.help_text()) from None
        values |= self.preset
        available = {*values, *reader.attempted}
        missing = [p.options[0] for p in self.parameters if p.required and p.name not in available]
        if missing:
            reader.problems.append(f"missing: {', '.join(missing)}")
        if reader.problems:
            raise self._argument_error(reader.problems, reader.hints)
        for parameter in self.parameters:
            if parameter.name not in values:  # never the object itself that the function holds
                values[parameter.name] = () if parameter.is_varargs else deepcopy(parameter.default)
        return values

    def _argument_error(self, problems: Sequence[str], hints: Sequence[str]) -> ComponentArgumentError:
        message = f"{self.name}: {problems[0]}"
        if len(problems) > 1:
            lines = "".join(f"\n  - {problem}" for problem in problems)
            message = f"{self.name}: {len(problems)} problems with the arguments:{lines}"
        advice = [*dict.fromkeys(filter(None, hints)), f"See: shunter run {self.name} --help"]
        return ComponentArgumentError(message, hint="\n".join(advice))

    def arranged(self, values: Mapping[str, Any]) -> ComponentArgs:
        """Return the values of all parameters, as `bind` returns them, by how they are passed."""
        args = ComponentArgs({}, [], {})
        for parameter in self.parameters:
            if parameter.is_varargs:
                args.var_args.extend(values[parameter.name])
            else:
                is_keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
                named = args.kwargs if is_keyword else args.positional_args
                named[parameter.name] = values[parameter.name]
        return args

    def call(self, values: Mapping[str, Any]) -> AppDef:
        """Call the function with the values of all parameters, as `bind` returns them."""
        args = self.arranged(values)
        place = _location(self.fn)
        with guarded(f"the component {self.name} failed", place.rpartition(":")[0]):
            app: Any = self.fn(*args.positional_args.values(), *args.var_args, **args.kwargs)
        if not isinstance(app, AppDef):  # of an installed TorchX, maybe
            app = our_app(app)
        if isinstance(app, AppDef):
            return app
        raise ComponentValidationException(
            f"the component {self.name} ({place}) returned a value of type {type(app).__name__}, "
            "not an AppDef",
            hint="Return shunter.specs.AppDef(name=..., roles=[...]).",
        )

    def help_text(self, prog: str = "") -> str:
        """Return the help: usage, beginning with ``prog``, description, and parameters."""
        prog = prog or f"shunter run {self.name}"
        if not self.preset:
            return help_text(self.fn.__doc__, self.parameters, prog)
        rest = [parameter for parameter in self.parameters if parameter.is_varargs]
        return help_text(self.fn.__doc__, rest, prog, "Every word after the name is passed unchanged.")


def _location(fn: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)


@contextmanager
def guarded(attempt: str, path: str) -> Iterator[None]:
    """Run user code: its output goes to stderr, its exceptions become errors that say where.

    Raises:
        ConfigError: the code raised anything but a `ShunterError`.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except ShunterError:
        raise
    except (Exception, SystemExit) as error:
        where = path
        if isinstance(error, SyntaxError) and error.filename:
            where = f"{error.filename}:{error.lineno}"
        for frame, line in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename == path:
                where = f"{path}:{line}"
        hint = f"To run it as a script: shunter run {path}" if isinstance(error, SystemExit) else ""
        raise ConfigError(f"{attempt}: {type(error).__name__}: {error} ({where})", hint=hint) from error


# ---- under TorchX's names


def materialize_appdef(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> AppDef:
    """Make the job of a component. The command line overrides ``config``, that ``cmpnt_defaults``.

    Defaults that are for no parameter have no effect, as in TorchX.

    Raises:
        ComponentArgumentError: arguments are unknown, missing or of the wrong type.
    """
    component, values = _bound(cmpnt_fn, cmpnt_args, cmpnt_defaults, config)
    return component.call(values)


def component_args_from_str(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: Sequence[str],
    cmpnt_args_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> ComponentArgs:
    """Return the arguments that `materialize_appdef` calls the component with."""
    component, values = _bound(cmpnt_fn, cmpnt_args, cmpnt_args_defaults, config)
    return component.arranged(values)


def _bound(
    fn: Callable[..., AppDef], args: Sequence[str], *layers: Mapping[str, Any] | None
) -> tuple[Component, dict[str, Any]]:
    component = Component(fn.__name__, fn, fn.__module__)
    known = {parameter.name for parameter in component.parameters}
    defaults = {name: value for layer in layers for name, value in (layer or {}).items() if name in known}
    return component, component.bind(args, defaults)


# ---- reading arguments


class _Reader:
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

    def read_words(self, args: Sequence[str]) -> dict[str, Any]:
        """Return the values in the words of a command line, by parameter name.

        Raises:
            HelpRequested: ``--help`` is among the options.
        """
        words = deque(args)
        texts: dict[str, list[str]] = {}
        varargs = self.options.varargs
        while words and (varargs is None or _is_option(words[0])):
            word = words.popleft()
            if word == "--":
                break
            if _is_option(word):
                self._read_option(word, words, texts)
            else:
                self._unexpected(word)
        values = {}
        for name, parts in texts.items():
            parameter = self.options.parameters[name]
            with self._collecting(parameter, parameter.options[0]):
                values[name] = _from_texts(parameter, parts)
        if words and varargs is None:
            self.problems.append(f"unexpected arguments after '--': {' '.join(words)}")
        elif words and varargs is not None:
            values[varargs.name] = self._rest(varargs, words)
        return values

    @contextmanager
    def _collecting(self, parameter: Parameter, place: str) -> Iterator[None]:
        """Note that a value does not fit its parameter."""
        try:
            yield
        except ConversionError as error:
            self.problems.append(f"{place}: {error} (expected {type_name(parameter.type)})")
            self.attempted.add(parameter.name)

    def _read_option(self, word: str, words: deque[str], texts: dict[str, list[str]]) -> None:
        """Add the text of an option; its value is taken from the words that follow."""
        match = self.options.match(word)
        if match is None:
            self._unknown(word, words)
            return
        parameter, text, negated = match
        if negated and text is not None:
            self.problems.append(f"{word.partition('=')[0]} takes no value")
        elif text is None and parameter.is_flag:
            text = words.popleft() if not negated and self._is_value_of_flag(words) else str(not negated)
        elif text is None and words and not words[0].startswith("--") and not self.options.match(words[0]):
            text = words.popleft()
        elif text is None:
            self.problems.append(f"{word} needs a value ({type_name(parameter.type)})")
            self.attempted.add(parameter.name)
            if words and words[0] != "--":
                self.hints.append(f"If {words[0]} is the value, write {word}={words[0]}.")
            return
        parts = texts.setdefault(parameter.name, [])
        if parts and not parameter.is_repeatable:
            self.problems.append(f"{parameter.options[0]} is given twice ({parts[0]!r} and {text!r})")
        parts.append(text or "")

    def _is_value_of_flag(self, words: deque[str]) -> bool:
        """Tell whether the next word must be the value of a flag, or looks like one."""
        if not words or words[0].startswith("-"):
            return False
        return self.options.varargs is None or words[0].lower() in TRUE_WORDS | FALSE_WORDS

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
        if self.options.varargs is not None:
            self.hints.append("Write arguments of the program itself after '--'.")
        if not equals and words and not words[0].startswith("-"):
            words.popleft()

    def _rest(self, varargs: Parameter, items: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of ``*args``."""
        values = []
        for position, item in enumerate(items, 1):
            with self._collecting(varargs, f"argument {position} of {varargs.name}"):
                convert = from_text if isinstance(item, str) else from_value
                values.append(convert(varargs.type, item))
        return tuple(values)

    def read_mapping(self, named: Mapping[str, Any], kind: str, *, as_text: bool) -> dict[str, Any]:
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
            if parameter is not None:
                with self._collecting(parameter, f"{kind} {name}"):
                    values[parameter.name] = _from_named(parameter, value, as_text=as_text)
            elif varargs is not None and name == varargs.name:
                with self._collecting(varargs, f"{kind} {name}"):
                    values[name] = self._rest(varargs, _items(value))
            else:
                self.problems.append(f"unknown {kind} {name!r}")
                known = [*self.options.parameters, *([varargs.name] if varargs else [])]
                self.hints.append(did_you_mean(name, known))
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
    if isinstance(value, str) and as_text:
        return from_text(parameter.type, value)
    try:
        return from_value(parameter.type, value)
    except ConversionError:
        if isinstance(value, str):
            return from_text(parameter.type, value)
        raise


def _items(value: Any) -> Sequence[Any]:
    """Return the items of a configured value of ``*args``, which may be one line of a shell."""
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ConversionError(f"{value!r}: {error}") from None
    if not isinstance(value, (list, tuple)):
        raise ConversionError(f"{value!r} is not a list")
    return value
