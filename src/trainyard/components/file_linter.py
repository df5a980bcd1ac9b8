"""The linter under the predecessor's names."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from trainyard.components.component_help import read_docstring
from trainyard.components.lint import ComponentFunctionValidator, LinterMessage, lint_component
from trainyard.components.validators import ArgTypeValidator, ReturnTypeValidator

__all__ = [
    "ArgTypeValidator",
    "ComponentFunctionValidator",
    "LinterMessage",
    "ReturnTypeValidator",
    "get_fn_docstring",
    "validate",
]


def validate(
    path: str, component_function: str, validators: Sequence[ComponentFunctionValidator] | None = None
) -> list[LinterMessage]:
    """Return the errors of a component (`trainyard.components.lint.lint_component` gives warnings too)."""
    messages = lint_component(path, component_function, validators, docstring=False)
    return [message for message in messages if message.severity == "error"]


def get_fn_docstring(fn: object) -> tuple[str, dict[str, str]]:
    """Return the description in a function's docstring, and its notes by parameter name."""
    doc = getattr(fn, "__doc__", None)
    return read_docstring(doc if not isinstance(fn, ast.FunctionDef) else ast.get_docstring(fn))
