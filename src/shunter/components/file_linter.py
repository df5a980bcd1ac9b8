"""Checking the source of a component without importing it: all problems at once, with file and line.

Checked is what the source alone shows: that the file parses, that each parameter has an annotation, and that
an AppDef is returned. Types are checked when the component is loaded (`shunter.components.parameters`).
"""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shunter.components.component_help import read_docstring
from shunter.components.parameters import Parameter
from shunter.errors import ComponentValidationException, did_you_mean
from shunter.paths import read_regular_file

Function = ast.FunctionDef | ast.AsyncFunctionDef

#: The name of the message that a file does not define the function.
_MISSING = "MissingFunction"


@dataclass
class LinterMessage:
    """One problem. ``line`` counts from 1, ``char`` from 0; ``severity`` is "error" for all of ours."""

    name: str
    description: str
    line: int
    char: int
    severity: str = "error"


class SourceFile:
    """The functions of a file, in its order. ``message`` is set instead when it cannot be read or parsed."""

    def __init__(self, path: str) -> None:
        self.functions: dict[str, Function] = {}
        self.message: LinterMessage | None = None
        self.mentions_jobs = False
        try:
            text = read_regular_file(path)
            self.mentions_jobs = b"AppDef" in text
            module = ast.parse(text, path)
            self.functions = {node.name: node for node in module.body if isinstance(node, Function)}
        except OSError as error:
            self.message = LinterMessage("SourceFile", f"cannot read it: {error.strerror}", 0, 0)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line, char = getattr(error, "lineno", 0) or 0, getattr(error, "offset", 0) or 0
            reason = getattr(error, "msg", None) or str(error) or "it is nested too deeply"
            self.message = LinterMessage("SourceFile", f"it does not parse: {reason}", line, char)


def component_functions(path: str | None) -> dict[str, str]:
    """Return the public functions of a file that return an AppDef, with the first lines of their docstrings.

    Empty without a file, or if it does not parse.
    """
    return {
        name: (ast.get_docstring(function) or "").partition("\n")[0].strip()
        for name, function in (SourceFile(path).functions.items() if path else ())
        if not name.startswith("_") and _returns(function) == "AppDef"
    }


def public_functions(path: str | None) -> list[str]:
    """Return the names of the public functions of a file; none without a file, or if it does not parse."""
    return [name for name in (SourceFile(path).functions if path else ()) if not name.startswith("_")]


def written_parameters(path: str, fn_name: str) -> list[Parameter]:
    """Return the parameters of a function as its source shows them, for completion, without ``*args``."""
    function = SourceFile(path).functions.get(fn_name)
    args = _named(function) if function else []
    return [Parameter(arg.arg, _type_for_completion(arg.annotation)) for arg in args]


def _type_for_completion(annotation: ast.expr | None) -> Any:
    match annotation:
        case ast.Name(id="bool"):
            return bool
        case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal"), slice=choices):
            items = choices.elts if isinstance(choices, ast.Tuple) else [choices]
            return Literal[tuple(item.value for item in items if isinstance(item, ast.Constant))]
    return str


def validate(
    path: str, component_function: str, validators: Sequence[ComponentFunctionValidator] | None = None
) -> list[LinterMessage]:
    """Return all problems of a file's component, in source order.

    By default its parameters and its return type are checked.
    """
    source = SourceFile(path)
    if source.message is not None:
        return [source.message]
    function = source.functions.get(component_function)
    if function is None:
        known = [name for name in source.functions if not name.startswith("_")]
        text = f"there is no function {component_function!r}. {did_you_mean(component_function, known)}"
        return [LinterMessage(_MISSING, text.rstrip(), 1, 0)]
    messages: list[LinterMessage] = []
    for validator in [ArgTypeValidator(), ReturnTypeValidator()] if validators is None else validators:
        messages += validator.validate(function)  # type: ignore[arg-type]
    return sorted(messages, key=lambda message: (message.line, message.char))


def is_plain_function(path: str, fn_name: str) -> bool:
    """Tell whether a function is not meant as a component: nothing in its file mentions an AppDef."""
    source = SourceFile(path)
    return fn_name in source.functions and not source.mentions_jobs


def require_clean(path: str, fn_name: str) -> None:
    """Raise if a component has errors. A function that is not defined in the file may be imported there.

    Raises:
        ComponentValidationException: the message has one line ``file:line: problem`` for each error.
    """
    errors = [message for message in validate(path, fn_name) if message.name != _MISSING]
    place = os.path.relpath(path) if os.path.abspath(path).startswith(os.getcwd() + os.sep) else path
    if errors:
        raise ComponentValidationException(
            f"the component {fn_name} cannot be used; {len(errors)} problem{'s' * (len(errors) > 1)}:\n"
            + "\n".join(f"  {place}:{message.line}: {message.description}" for message in errors)
        )


# ---- the checks


class ComponentFunctionValidator:
    """A check of a component's function; subclass it to add a check."""

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return what is wrong with the function."""
        raise NotImplementedError

    def _message(self, node: ast.arg | ast.expr | ast.stmt, description: str) -> LinterMessage:
        return LinterMessage(type(self).__name__, description, node.lineno, node.col_offset)


class ArgTypeValidator(ComponentFunctionValidator):
    """Checks that all parameters have types, and can be written on a command line."""

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return what is wrong with the parameters."""
        messages = [
            self._message(arg, f"the parameter {arg.arg!r} has no type annotation")
            for arg in _named(app_specs_func_def)
            if arg.annotation is None
        ]
        rest = app_specs_func_def.args.kwarg
        if rest is not None:
            messages.append(self._message(rest, f"**{rest.arg} cannot be written on a command line"))
        return messages


class ReturnTypeValidator(ComponentFunctionValidator):
    """Checks that the function is a plain one whose return annotation is AppDef."""

    def __init__(self, supported_return_type: str = "AppDef") -> None:
        self.supported = supported_return_type

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return what is wrong with what it returns."""
        returns = app_specs_func_def.returns
        place: ast.stmt | ast.expr = app_specs_func_def
        if isinstance(app_specs_func_def, ast.AsyncFunctionDef):
            text = f"{app_specs_func_def.name!r} is async; a component is a plain function (def)"
        elif returns is None:
            text = f"it has no return annotation; write -> {self.supported}"
        elif _returns(app_specs_func_def) == self.supported:
            return []
        else:
            place = returns
            text = f"its return annotation is {ast.unparse(returns)}; write -> {self.supported}"
        return [self._message(place, text)]


def _named(function: Function) -> list[ast.arg]:
    """Return the parameters of a function that have options."""
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _returns(function: Function) -> str:
    """Return the name of the class that a function returns, without the module before it."""
    node = function.returns
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.strip().rpartition(".")[2]
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def get_fn_docstring(fn: object) -> tuple[str, dict[str, str]]:
    """Return the description in a function's docstring, and its notes by parameter name; TorchX's name."""
    text, notes = read_docstring(getattr(fn, "__doc__", None))
    return text.replace("\n\n", "\n"), notes
