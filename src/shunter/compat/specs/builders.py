"""Jobs from components and their arguments (``torchx.specs.builders``)."""

from __future__ import annotations

import argparse
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from shunter.components import materialize
from shunter.components.materialize import ComponentArgs
from shunter.errors import ComponentArgumentError
from shunter.specs.app import AppDef

__all__ = ["ComponentArgs", "component_args_from_str", "exits", "materialize_appdef", "parse_args"]
F = TypeVar("F", bound=Callable[..., Any])


class ComponentArgumentExit(ComponentArgumentError, SystemExit):
    """Arguments that do not fit a component, or ``--help`` among them.

    A `SystemExit` too, since TorchX parses arguments with argparse, which ends the program.
    """

    def __init__(self, message: str, *, hint: str = "", code: int = 2) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = self.code = code


def exits(function: F) -> F:
    """Let a function print what is wrong with a component's arguments, and raise `SystemExit`."""

    @functools.wraps(function)
    def exiting(*args: Any, **more: Any) -> Any:
        try:
            return function(*args, **more)
        except ComponentArgumentExit:
            raise
        except ComponentArgumentError as error:
            print(error, file=sys.stderr if error.exit_code else sys.stdout)  # noqa: T201
            raise ComponentArgumentExit(error.message, hint=error.hint, code=error.exit_code) from error

    return exiting  # type: ignore[return-value]


materialize_appdef = exits(materialize.materialize_appdef)
component_args_from_str = exits(materialize.component_args_from_str)


def parse_args(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> argparse.Namespace:
    """Return the values of a component's parameters, by name, as a command line gives them."""
    parsed = component_args_from_str(cmpnt_fn, cmpnt_args, cmpnt_defaults, config)
    values = {**parsed.positional_args, **parsed.kwargs}
    for name, parameter in inspect.signature(cmpnt_fn).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            values[name] = parsed.var_args
    return argparse.Namespace(**values)
