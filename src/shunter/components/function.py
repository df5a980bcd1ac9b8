"""A function that is not a component, as a job: ``shunter run work:train --lr 0.1`` calls it there.

Its signature is its command line, as a component's is. The arguments travel as JSON, and
`shunter_toolkit.function_call` makes the call.
"""

from __future__ import annotations

import enum
import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from shunter._toolkit import script_command
from shunter.components import train
from shunter.components.component import Component
from shunter.errors import ConfigError
from shunter.specs.app import AppDef
from shunter.specs.training import CALL_KEY, new_call


class FunctionComponent(Component):
    """The job that calls a function; ``--gpu``, ``--image`` and so on are the parameters of `train.script`.

    Args:
        name: as written after ``shunter run``: ``work:train``, ``work.py:train``.
        function: the function.
        target: the function as the job imports it, ``module:function``.
        origin: where it was found.
    """

    def __init__(self, name: str, function: Callable[..., Any], target: str, origin: str) -> None:
        super().__init__(
            name, train.script, origin, "train.script", preset={"script": script_command.TOOLKIT}
        )
        self.function = Component(name, _annotated(function), origin)
        self.target = target
        _ = self.function.parameters  # reports an unusable signature now

    def parse(
        self, args: Sequence[str] | Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> AppDef:
        """Make the job that calls the function.

        Args:
            args: the function's arguments: words of a command line, or values by parameter name.
            defaults: values of parameters of `train.script`.

        Raises:
            ComponentArgumentError: arguments do not fit the function.
            HelpRequested: ``--help`` is among them.
            ConfigError: a value cannot travel as JSON, or the job is not possible.
        """
        own = self.function.arranged(self.function.bind(args))
        positional = [*own.positional_args.values(), *own.var_args] if own.var_args else []
        named = own.kwargs if own.var_args else {**own.positional_args, **own.kwargs}
        try:
            text = json.dumps({"args": positional, "kwargs": named}, default=_as_json)
        except TypeError as error:
            raise ConfigError(
                f"cannot call {self.name} from a command line: {error}",
                hint="Submit it from Python: shunter.Executor takes any value.",
            ) from None
        words = ["call", "--function", self.target, "--arguments", text]
        short = self.target.rpartition(":")[2]
        app = super().parse(words, {"name": short, **(defaults or {})})
        app.roles[0].name = short
        app.roles[0].metadata[CALL_KEY] = new_call(1)
        return app

    def help_text(self, prog: str = "") -> str:
        """Return the function's help."""
        return self.function.help_text(prog)


def target_of(path: str, function: str) -> str:
    """Return how a job imports a function of a file below the current directory.

    Raises:
        ConfigError: the file is elsewhere, or its path has parts that no module can be named.
    """
    relative = os.path.relpath(path)
    parts = relative.removesuffix(".py").split(os.sep)
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(
            f"cannot call {function} of {path}: a job imports it as a module, below the current directory",
            hint="Change to the directory of the file, and write file.py:function.",
        )
    return f"{'.'.join(parts)}:{function}"


def _annotated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose parameters without annotation have the types of their defaults."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=type(parameter.default))
        if parameter.annotation is parameter.empty and isinstance(parameter.default, (str, int, float, bool))
        else parameter
        for parameter in signature.parameters.values()
    ]
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapper


def _as_json(value: Any) -> Any:
    """Return a path as its text, a member of an enum as its name; annotations turn them back in the job."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.name
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
