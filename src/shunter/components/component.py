"""A component: a function that makes a job, called with arguments from a command line, JSON or files."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from shunter.components.arguments import HelpRequested, Options, Reader
from shunter.components.component_help import help_text
from shunter.components.parameters import Parameter, SignatureError, read_parameters
from shunter.components.user_code import guarded
from shunter.errors import ComponentArgumentError, ComponentValidationException
from shunter.specs.app import AppDef
from shunter.specs.translation import is_app, our_app


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

    def __init__(
        self,
        name: str,
        fn: Callable[..., AppDef],
        *,
        origin: str = "",
        config_name: str = "",
        preset: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.fn = fn
        self.origin = origin
        self.config_name = config_name or name
        self.preset = dict(preset or {})

    def __repr__(self) -> str:
        return f"Component({self.name!r}, {self.origin!r})"

    @functools.cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters in the order of the signature; for help and shell completion.

        Raises:
            ComponentValidationException: the signature cannot be a command line; lists all problems.
        """
        try:
            return read_parameters(self.fn)
        except SignatureError as error:
            lines = "".join(f"\n  {_location(self.fn)}: {text}" for text in error.problems)
            raise ComponentValidationException(
                f"the component {self.name} cannot be used:{lines}",
                hint="Annotate each parameter with a type that can be written as text.",
            ) from None

    @functools.cached_property
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
        text = (self.fn.__doc__ or "").strip()
        return text.splitlines()[0].strip() if text else ""

    @property
    def description(self) -> str:
        """The same, under TorchX's name."""
        return self.summary

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
        reader = Reader(self.options)
        values: dict[str, Any] = {}
        if defaults:
            values |= reader.read_mapping(defaults, kind="default", as_text=True)
        values |= self._read(args, reader) | self.preset
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

    def _read(self, args: Sequence[str] | Mapping[str, Any], reader: Reader) -> dict[str, Any]:
        if isinstance(args, Mapping):
            return reader.read_mapping(args, kind="argument", as_text=False)
        try:
            return reader.read_words(["--", *args] if self.preset else args)
        except HelpRequested:
            raise HelpRequested(self.help_text()) from None

    def _argument_error(self, problems: Sequence[str], hints: Sequence[str]) -> ComponentArgumentError:
        message = f"{self.name}: {problems[0]}"
        if len(problems) > 1:
            lines = "".join(f"\n  - {problem}" for problem in problems)
            message = f"{self.name}: {len(problems)} problems with the arguments:{lines}"
        advice = [*dict.fromkeys(filter(None, hints)), f"See: shunter run {self.name} --help"]
        return ComponentArgumentError(message, hint="\n".join(advice))

    def call(self, values: Mapping[str, Any]) -> AppDef:
        """Call the function with the values of all parameters, as `bind` returns them."""
        args: list[Any] = []
        keywords: dict[str, Any] = {}
        for parameter in self.parameters:
            value = values[parameter.name]
            if parameter.is_varargs:
                args += value
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                keywords[parameter.name] = value
            else:
                args.append(value)
        with guarded(f"the component {self.name} failed", _location(self.fn).rpartition(":")[0]):
            app: Any = self.fn(*args, **keywords)
        if not isinstance(app, AppDef):
            if is_app(app):  # of an installed TorchX
                return our_app(app)  # type: ignore[no-any-return]
            raise ComponentValidationException(
                f"the component {self.name} ({_location(self.fn)}) returned a value of type "
                f"{type(app).__name__}, not an AppDef",
                hint="Return shunter.specs.AppDef(name=..., roles=[...]).",
            )
        return app

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
