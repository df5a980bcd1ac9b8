"""A component: a function that makes a job, called with arguments from a command line, JSON or files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shunter.components.arguments import Given, HelpRequested, Options, decode_given, decode_mapping, scan
from shunter.components.component_help import help_text
from shunter.components.parameters import Parameter, SignatureError, read_parameters, unwrapped
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
            lines = "".join(f"\n  {_location(self.fn)}: {text}" for _, text in error.problems)
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
        """The same, under the predecessor's name."""
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
        given = Given()
        values: dict[str, Any] = {}
        if defaults:
            values |= decode_mapping(self.options, defaults, given, kind="default", as_text=True)
        values |= self._decode_args(args, given) | self.preset
        missing = [p.options[0] for p in self.parameters if p.required and p.name not in values]
        attempted = {problem.partition(":")[0] for problem in given.problems}
        missing = [option for option in missing if option not in attempted]
        if missing:
            given.problems.append(f"missing: {', '.join(missing)}")
        if given.problems:
            raise self._argument_error(given)
        for parameter in self.parameters:
            if parameter.name not in values:
                values[parameter.name] = () if parameter.is_varargs else parameter.default_copy()
        return values

    def _decode_args(self, args: Sequence[str] | Mapping[str, Any], given: Given) -> dict[str, Any]:
        if isinstance(args, Mapping):
            return decode_mapping(self.options, args, given, kind="argument", as_text=False)
        if self.preset:
            args = ["--", *args]
        try:
            scan(self.options, args, given)
        except HelpRequested:
            raise HelpRequested(self.help_text()) from None
        return decode_given(self.options, given)

    def _argument_error(self, given: Given) -> ComponentArgumentError:
        if len(given.problems) == 1:
            message = f"{self.name}: {given.problems[0]}"
        else:
            lines = "".join(f"\n  - {problem}" for problem in given.problems)
            message = f"{self.name}: {len(given.problems)} problems with the arguments:{lines}"
        advice = [*dict.fromkeys(filter(None, given.hints)), f"See: shunter run {self.name} --help"]
        return ComponentArgumentError(message, hint="\n".join(advice))

    def call(self, values: Mapping[str, Any]) -> AppDef:
        """Call the function with the values of all parameters, as `bind` returns them."""
        positional = [
            p for p in self.parameters if p.kind in (p.kind.POSITIONAL_ONLY, p.kind.POSITIONAL_OR_KEYWORD)
        ]
        varargs = self.options.varargs
        args = [values[p.name] for p in positional] + list(values[varargs.name] if varargs else ())
        keywords = {p.name: values[p.name] for p in self.parameters if p.kind is p.kind.KEYWORD_ONLY}
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
        return help_text(self, prog or f"shunter run {self.name}")


def _location(fn: Callable[..., Any]) -> str:
    code = getattr(unwrapped(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)
