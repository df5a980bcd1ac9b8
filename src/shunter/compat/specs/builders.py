"""Jobs from components and their arguments (``torchx.specs.builders``)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from shunter.components import component
from shunter.components.component import ComponentArgs
from shunter.errors import ComponentArgumentError

__all__ = ["ComponentArgs", "component_args_from_str", "exits", "materialize_appdef"]
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
            print(error, file=sys.stderr if error.exit_code else sys.stdout)
            raise ComponentArgumentExit(error.message, hint=error.hint, code=error.exit_code) from error

    return exiting  # type: ignore[return-value]


materialize_appdef = exits(component.materialize_appdef)
component_args_from_str = exits(component.component_args_from_str)
