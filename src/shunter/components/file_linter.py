"""Checking the source of a component without importing it: all problems at once, with file and line.

Annotations are read as far as the file shows them. What it imports or defines is accepted here, and checked
when the component is loaded, by the same rules (`shunter.components.parameters`).
"""

from __future__ import annotations

import ast
import inspect
import os
import typing
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Union

from shunter.components.component_help import read_docstring
from shunter.components.parameters import Parameter, SignatureError, read_parameter
from shunter.errors import ComponentValidationException, did_you_mean
from shunter.paths import read_regular_file

Function = ast.FunctionDef | ast.AsyncFunctionDef

_TYPING = "Annotated Any Callable Dict List Literal Mapping MutableMapping MutableSequence Optional Sequence "
_TYPING += "Set Tuple Union"
_BUILTINS = (str, int, float, bool, bytes, list, dict, tuple, set, frozenset, object, complex)
#: The types that annotations name in every file; all other names may mean anything.
_TYPES: dict[str, Any] = {
    **{cls.__name__: cls for cls in (*_BUILTINS, Path, PurePath)},
    **{name: getattr(typing, name) for name in _TYPING.split()},
}
#: The name of the message that a file does not define the function.
_MISSING = "MissingFunction"


@dataclass
class LinterMessage:
    """One problem. ``line`` counts from 1, ``char`` from 0; ``severity`` is "error" or "warning"."""

    name: str
    description: str
    line: int
    char: int
    severity: str = "error"


class SourceFile:
    """A parsed file. ``message`` is set instead when it cannot be read or parsed."""

    def __init__(self, path: str) -> None:
        self.module = ast.Module(body=[], type_ignores=[])
        self.message: LinterMessage | None = None
        try:
            self.module = ast.parse(read_regular_file(path), path)
        except OSError as error:
            self.message = LinterMessage("SourceFile", f"cannot read it: {error.strerror}", 0, 0)
        except (RecursionError, MemoryError):
            self.message = LinterMessage("SourceFile", "it does not parse: it is nested too deeply", 0, 0)
        except (SyntaxError, ValueError) as error:
            line, char = getattr(error, "lineno", 0) or 0, getattr(error, "offset", 0) or 0
            text = f"it does not parse: {getattr(error, 'msg', error)}"
            self.message = LinterMessage("SourceFile", text, line, char)

    def functions(self) -> Iterator[Function]:
        """Yield the functions of the module, also those under ``if`` and ``try``, but not in others."""
        blocks: deque[ast.AST] = deque([self.module])
        while blocks:
            for node in ast.iter_child_nodes(blocks.popleft()):
                if isinstance(node, Function):
                    yield node
                elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ExceptHandler)):
                    blocks.append(node)

    def function(self, name: str) -> Function | None:
        """Return the last definition of a function."""
        return next((node for node in reversed([*self.functions()]) if node.name == name), None)


def component_functions(path: str | None) -> dict[str, str]:
    """Return the public functions of a file that return an AppDef, with the first lines of their docstrings.

    Empty without a file, or if it does not parse.
    """
    return {
        function.name: (ast.get_docstring(function) or "").partition("\n")[0].strip()
        for function in (SourceFile(path).functions() if path else ())
        if not function.name.startswith("_") and _returns(function) == "AppDef"
    }


def written_parameters(path: str, fn_name: str) -> list[Parameter]:
    """Read the parameters of a function from its source, for completion, without ``*args``."""
    function = SourceFile(path).function(fn_name)
    parameters = []
    for _, raw in _raw_parameters(function) if function else ():
        try:
            parameters.append(read_parameter(raw))
        except SignatureError:
            parameters.append(Parameter(raw.name, str))
    return [parameter for parameter in parameters if not parameter.is_varargs]


def lint_component(
    path: str, fn_name: str, validators: Sequence[ComponentFunctionValidator] | None = None
) -> list[LinterMessage]:
    """Return all problems of a file's component, in source order.

    By default its arguments, return type and docstring are checked.
    """
    source = SourceFile(path)
    if source.message is not None:
        return [source.message]
    function = source.function(fn_name)
    if function is None:
        known = [node.name for node in source.functions() if not node.name.startswith("_")]
        text = f"there is no function {fn_name!r}. {did_you_mean(fn_name, known)}".rstrip()
        return [LinterMessage(_MISSING, text, 1, 0)]
    messages: list[LinterMessage] = []
    if isinstance(function, ast.AsyncFunctionDef):
        text = f"{fn_name!r} is async; a component is a plain function (def)"
        messages.append(LinterMessage("AsyncFunction", text, function.lineno, function.col_offset))
    if validators is None:
        validators = [ArgTypeValidator(), ReturnTypeValidator(), DocstringValidator()]
    for validator in validators:
        messages += validator.validate(function)  # type: ignore[arg-type]
    return sorted(messages, key=lambda message: (message.line, message.char))


def validate(
    path: str, component_function: str, validators: Sequence[ComponentFunctionValidator] | None = None
) -> list[LinterMessage]:
    """Return the errors of a component (`lint_component` returns warnings too)."""
    messages = lint_component(path, component_function, validators)
    return [message for message in messages if message.severity == "error"]


def require_clean(path: str, fn_name: str) -> None:
    """Raise if a component has errors. A function that is not defined in the file may be imported there.

    Raises:
        ComponentValidationException: the message has one line ``file:line: problem`` for each error.
    """
    errors = [message for message in validate(path, fn_name) if message.name != _MISSING]
    if errors:
        shown = os.path.relpath(path) if os.path.abspath(path).startswith(os.getcwd() + os.sep) else path
        raise ComponentValidationException(
            f"the component {fn_name} cannot be used; {len(errors)} problem{'s' * (len(errors) > 1)}:\n"
            + "\n".join(f"  {shown}:{message.line}: {message.description}" for message in errors)
        )


# ---- the checks


class ComponentFunctionValidator:
    """A check of a component's function; subclass it to add a check."""

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return what is wrong with the function."""
        raise NotImplementedError

    def _message(self, node: ast.AST, description: str, severity: str = "error") -> LinterMessage:
        line, char = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        return LinterMessage(type(self).__name__, description, line, char, severity)


class ArgTypeValidator(ComponentFunctionValidator):
    """Checks that all parameters have types that can be written as text, and defaults that fit them."""

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return what is wrong with the parameters."""
        messages = []
        for argument, raw in _raw_parameters(app_specs_func_def):
            try:
                read_parameter(raw)
            except SignatureError as error:
                messages += [self._message(argument, text) for text in error.problems]
            if raw.kind is raw.VAR_POSITIONAL and raw.annotation is raw.empty:
                text = f"*{raw.name} has no type annotation; str is assumed"
                messages.append(self._message(argument, text, "warning"))
        return messages


class ReturnTypeValidator(ComponentFunctionValidator):
    """Checks that the return annotation is AppDef."""

    def __init__(self, supported_return_type: str = "AppDef") -> None:
        self.supported = supported_return_type

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return what is wrong with the return annotation."""
        returns = app_specs_func_def.returns
        if returns is None:
            text = f"it has no return annotation; write -> {self.supported}"
            return [self._message(app_specs_func_def, text)]
        if _returns(app_specs_func_def) != self.supported:
            text = f"its return annotation is {ast.unparse(returns)}; write -> {self.supported}"
            return [self._message(returns, text)]
        return []


class DocstringValidator(ComponentFunctionValidator):
    """Warns of a missing docstring, and of documented parameters that do not exist."""

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return how the docstring differs from the signature."""
        doc = ast.get_docstring(app_specs_func_def)
        if not doc:
            text = "it has no docstring, so its help has no descriptions"
            return [self._message(app_specs_func_def, text, "warning")]
        names = {raw.name for _, raw in _raw_parameters(app_specs_func_def)}
        node = app_specs_func_def.body[0]
        return [
            self._message(node, f"the docstring describes {name!r}, which is not a parameter", "warning")
            for name in read_docstring(doc)[1]
            if name not in names
        ]


# ---- what a signature says


def _raw_parameters(function: Function) -> Iterator[tuple[ast.arg, inspect.Parameter]]:
    """Yield the parameters of a function, each with its place. Defaults that are no literals are left out."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults = [*[None] * (len(positional) - len(spec.defaults)), *spec.defaults, *spec.kw_defaults]
    for argument, default in zip([*positional, *spec.kwonlyargs], defaults, strict=True):
        yield argument, _raw_parameter(argument, inspect.Parameter.KEYWORD_ONLY, default)
    if spec.vararg is not None:
        yield spec.vararg, _raw_parameter(spec.vararg, inspect.Parameter.VAR_POSITIONAL)
    if spec.kwarg is not None:
        yield spec.kwarg, _raw_parameter(spec.kwarg, inspect.Parameter.VAR_KEYWORD)


def _raw_parameter(argument: ast.arg, kind: Any, default: ast.expr | None = None) -> inspect.Parameter:
    annotation: Any = inspect.Parameter.empty
    if argument.annotation is not None:
        try:
            annotation = _type_of(argument.annotation)
        except (TypeError, SyntaxError):  # such as dict[str], or Optional[int, str]
            annotation = Any
    value = inspect.Parameter.empty if default is None else _literal(default)
    return inspect.Parameter(argument.arg, kind, default=value, annotation=annotation)


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal, and ``inspect.Parameter.empty`` for other expressions."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return inspect.Parameter.empty


def _type_of(node: ast.expr) -> Any:
    """Return the type that an annotation names; Any where only running the file would tell."""
    match node:
        case ast.Constant(value=str(text)):
            return _type_of(ast.parse(text.strip(), mode="eval").body)
        case ast.Constant(value=None):
            return type(None)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _TYPES.get(name, Any)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return Union[_type_of(left), _type_of(right)]  # noqa: UP007
        case ast.Subscript(value=value, slice=inner):
            items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            origin: Any = _type_of(value)
            if origin is typing.Literal:
                choices = tuple(map(_literal, items))
                return Any if inspect.Parameter.empty in choices else origin[choices]
            if origin is typing.Annotated:
                return origin[(_type_of(items[0]), *map(_literal, items[1:]))]
            if origin in (Any, typing.Callable):
                return origin
            return origin[tuple(map(_type_of, items)) if len(items) > 1 else _type_of(items[0])]
    return node.value if isinstance(node, ast.Constant) else Any


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
