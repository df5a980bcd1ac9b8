"""Checking the source of a component, without importing it: every problem at once, with file and line."""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainyard.errors import ComponentValidationException, did_you_mean
from trainyard.ordinary import read_ordinary

if TYPE_CHECKING:
    from trainyard.components.parameters import Parameter

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class LinterMessage:
    """One problem. ``line`` counts from 1, ``char`` from 0; ``severity`` is "error" or "warning"."""

    name: str
    description: str
    line: int
    char: int
    severity: str = "error"


class ComponentFunctionValidator:
    """A check of a component's function; subclass it for checks of your own."""

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return what is wrong with the function."""
        raise NotImplementedError

    def _message(self, node: ast.AST, description: str, severity: str = "error") -> LinterMessage:
        line, char = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
        return LinterMessage(type(self).__name__, description, line, char, severity)


class SourceFile:
    """A parsed file. ``message`` is set instead when it cannot be read or parsed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.module = ast.Module(body=[], type_ignores=[])
        self.message: LinterMessage | None = None
        try:
            self.module = ast.parse(read_ordinary(path), path)
        except OSError as error:
            self.message = LinterMessage("SourceFile", f"cannot read it: {error.strerror}", 0, 0)
        except (RecursionError, MemoryError):
            self.message = LinterMessage("SourceFile", "it does not parse: it is nested too deeply", 0, 0)
        except (SyntaxError, ValueError) as error:
            line, char = getattr(error, "lineno", 0) or 0, getattr(error, "offset", 0) or 0
            text = getattr(error, "msg", str(error))
            self.message = LinterMessage("SourceFile", f"it does not parse: {text}", line, char)

    def function(self, name: str) -> Function | None:
        """Return the definition of a function; of several, the last, which is the one that counts."""
        found = [n for n in self._statements() if isinstance(n, Function) and n.name == name]
        return found[-1] if found else None

    def binds(self, name: str) -> bool:
        """Tell whether the name is imported or assigned, so that its source is elsewhere."""
        for node in self._statements():
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                if any(alias.name == "*" or (alias.asname or alias.name) == name for alias in node.names):
                    return True
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                    return True
        return False

    def _statements(self) -> Iterator[ast.stmt]:
        """Yield the statements of the module, also those under ``if`` and ``try``."""
        pending = list(reversed(self.module.body))
        while pending:
            node = pending.pop()
            yield node
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                inner = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
                for handler in getattr(node, "handlers", []):
                    inner += handler.body
                pending += reversed(inner)


def lint_component(
    path: str,
    fn_name: str,
    validators: Sequence[ComponentFunctionValidator] | None = None,
    *,
    docstring: bool = True,
) -> list[LinterMessage]:
    """Return every problem of a component, in the order of the source.

    Args:
        path: the file.
        fn_name: the function in it.
        validators: the checks; by default those of arguments, defaults, return type and docstring.
        docstring: whether the default checks compare the docstring to the signature (warnings).
    """
    from trainyard.components.validators import default_validators

    source = SourceFile(path)
    if source.message is not None:
        return [source.message]
    function = source.function(fn_name)
    if function is None:
        if source.binds(fn_name):
            return []  # its own file tells; the signature is checked when it is called
        known = [name for name in component_functions(path) if not name.startswith("_")]
        text = f"there is no function {fn_name!r}. {did_you_mean(fn_name, known)}".rstrip()
        return [LinterMessage("SourceFile", text, 1, 0)]
    if isinstance(function, ast.AsyncFunctionDef):
        text = f"{fn_name!r} is async; a component is a plain function (def)"
        message = LinterMessage("AsyncFunction", text, function.lineno, function.col_offset)
        function = _as_plain(function)
        messages = [message]
    else:
        messages = []
    if validators is None:
        validators = default_validators(source.module, docstring=docstring)
    for validator in validators:
        messages += validator.validate(function)
    return sorted(messages, key=lambda message: (message.line, message.char))


def _as_plain(function: ast.AsyncFunctionDef) -> ast.FunctionDef:
    plain = ast.FunctionDef(function.name, function.args, function.body, function.decorator_list)
    plain.returns = function.returns
    return ast.copy_location(plain, function)


def require_clean(path: str, fn_name: str) -> None:
    """Raise if a component has errors (warnings do not count); a function that is absent is not its matter.

    Raises:
        ComponentValidationException: the message has one line ``file:line: problem`` for each error.
    """
    messages = lint_component(path, fn_name, docstring=False)
    errors = [m for m in messages if m.severity == "error" and "there is no function" not in m.description]
    if errors:
        shown = os.path.relpath(path) if os.path.abspath(path).startswith(os.getcwd() + os.sep) else path
        raise ComponentValidationException(
            f"the component {fn_name} cannot be used; {len(errors)} problem{'s' * (len(errors) > 1)}:\n"
            + "\n".join(f"  {shown}:{message.line}: {message.description}" for message in errors)
        )


def component_functions(path: str) -> list[str]:
    """Return the public functions of a file whose return annotation is AppDef; none if it does not parse."""
    source = SourceFile(path)
    return [
        node.name
        for node in source._statements()
        if isinstance(node, Function) and not node.name.startswith("_") and returns_appdef(node.returns)
    ]


def written_parameters(path: str, fn_name: str) -> list[Parameter]:
    """Read the parameters of a function from its source alone, as far as completion needs them.

    A type that is neither bool nor a Literal counts as text.
    """
    from trainyard.components.parameters import Parameter

    function = SourceFile(path).function(fn_name)
    if function is None:
        return []
    given = function.args
    parameters = []
    for argument in [*given.posonlyargs, *given.args, *given.kwonlyargs]:
        annotation, notes = argument.annotation, []
        if isinstance(annotation, ast.Subscript) and _last_name(annotation.value) == "Annotated":
            annotation, *extra = _items(annotation)
            notes = [node.value for node in extra if isinstance(node, ast.Constant)]
        texts = [note for note in notes if isinstance(note, str)]
        aliases = tuple(text for text in texts if text.startswith("-"))
        note = next((text for text in texts if not text.startswith("-")), "")
        parameters.append(Parameter(argument.arg, _written_type(annotation), aliases=aliases, note=note))
    return parameters


def _written_type(annotation: ast.expr | None) -> Any:
    """Return bool or a Literal if an annotation is that, or that or None; else str."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        with contextlib.suppress(SyntaxError):
            return _written_type(ast.parse(annotation.value, mode="eval").body)
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        kinds = [_written_type(side) for side in (annotation.left, annotation.right)]
        return next((kind for kind in kinds if kind is not str), str)
    if isinstance(annotation, ast.Subscript):
        name, items = _last_name(annotation.value), _items(annotation)
        if name == "Optional":
            return _written_type(items[0])
        choices = [item.value for item in items if isinstance(item, ast.Constant)]
        return Literal[tuple(choices)] if name == "Literal" and choices else str
    return bool if _last_name(annotation) == "bool" else str


def _items(annotation: ast.Subscript) -> list[ast.expr]:
    inner = annotation.slice
    return inner.elts if isinstance(inner, ast.Tuple) else [inner]


def _last_name(node: ast.expr | None) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def returns_appdef(annotation: ast.expr | None, name: str = "AppDef") -> bool:
    """Tell whether a return annotation is ``AppDef``, ``anything.AppDef`` or either as a text."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.strip().split(".")[-1] == name
    if isinstance(annotation, ast.Attribute):
        return annotation.attr == name
    return isinstance(annotation, ast.Name) and annotation.id == name
