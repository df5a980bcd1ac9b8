"""Checking the source of a component without importing it: all problems at once, with file and line.

Annotations are checked as far as the file shows them: imported names are accepted here, and checked when the
component is loaded.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shunter.components.component_help import read_docstring
from shunter.components.parameters import Parameter
from shunter.errors import ComponentValidationException, did_you_mean
from shunter.paths import read_regular_file

Function = ast.FunctionDef | ast.AsyncFunctionDef
_SCALARS = {"str", "int", "float", "bool", "object", "Any", "None", "Path", "PurePath"}
_CONTAINERS = {"list", "dict", "tuple", "List", "Dict", "Tuple"}
_CONTAINERS |= {"Sequence", "MutableSequence", "Mapping", "MutableMapping"}
_WRAPPERS = {"Optional", "Union"}
_USE = (
    "use str, int, float, bool, Path, Literal, an Enum, a dataclass, or list, dict, tuple, Optional of those"
)


@dataclass
class LinterMessage:
    """One problem. ``line`` counts from 1, ``char`` from 0; ``severity`` is "error" or "warning"."""

    name: str
    description: str
    line: int
    char: int
    severity: str = "error"


class ComponentFunctionValidator:
    """A check of a component's function; subclass it to add a check."""

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
            self.module = ast.parse(read_regular_file(path), path)
        except OSError as error:
            self.message = LinterMessage("SourceFile", f"cannot read it: {error.strerror}", 0, 0)
        except (RecursionError, MemoryError):
            self.message = LinterMessage("SourceFile", "it does not parse: it is nested too deeply", 0, 0)
        except (SyntaxError, ValueError) as error:
            line, char = getattr(error, "lineno", 0) or 0, getattr(error, "offset", 0) or 0
            text = getattr(error, "msg", str(error))
            self.message = LinterMessage("SourceFile", f"it does not parse: {text}", line, char)

    def function(self, name: str) -> Function | None:
        """Return the last definition of a function."""
        found = [n for n in self._statements() if isinstance(n, Function) and n.name == name]
        return found[-1] if found else None

    def binds(self, name: str) -> bool:
        """Tell whether the name is imported or assigned, so that it is defined elsewhere."""
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
    """Return all problems of a file's component, in source order.

    By default arguments, defaults and return type are checked and, with ``docstring``, warnings about the
    docstring are included.
    """
    source = SourceFile(path)
    if source.message is not None:
        return [source.message]
    function = source.function(fn_name)
    if function is None:
        if source.binds(fn_name):
            return []  # it is checked when it is loaded
        known = [name for name in component_functions(path) if not name.startswith("_")]
        text = f"there is no function {fn_name!r}. {did_you_mean(fn_name, known)}".rstrip()
        return [LinterMessage("SourceFile", text, 1, 0)]
    messages: list[LinterMessage] = []
    if isinstance(function, ast.AsyncFunctionDef):
        text = f"{fn_name!r} is async; a component is a plain function (def)"
        messages.append(LinterMessage("AsyncFunction", text, function.lineno, function.col_offset))
        function = _as_plain(function)
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
    """Raise if a component has errors; warnings and a missing function are ignored.

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
    """Return the public functions of a file whose return annotation is AppDef; [] if it does not parse."""
    source = SourceFile(path)
    return [
        node.name
        for node in source._statements()
        if isinstance(node, Function) and not node.name.startswith("_") and returns_appdef(node.returns)
    ]


def written_parameters(path: str, fn_name: str) -> list[Parameter]:
    """Read the parameters of a function from its source, for completion: types are bool, Literal or str."""
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
    """Return bool or a Literal if an (optional) annotation is one, otherwise str."""
    annotation = _unquoted(annotation)
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


def _unquoted(annotation: ast.expr | None) -> ast.expr | None:
    """Return what an annotation that is written as a text stands for; others as they are."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        with contextlib.suppress(SyntaxError):
            return _unquoted(ast.parse(annotation.value.strip(), mode="eval").body)
    return annotation


def _items(annotation: ast.Subscript) -> list[ast.expr]:
    inner = annotation.slice
    return inner.elts if isinstance(inner, ast.Tuple) else [inner]


def _last_name(node: ast.expr | None) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def returns_appdef(annotation: ast.expr | None, name: str = "AppDef") -> bool:
    """Tell whether a return annotation is ``AppDef``, ``anything.AppDef`` or either as a text."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value.strip().split(".")[-1] == name
    return _last_name(annotation) == name


# ---- the checks


class ArgTypeValidator(ComponentFunctionValidator):
    """Checks that all parameters have types that can be written as text; refuses ``**kwargs``."""

    def __init__(self, module: ast.Module | None = None) -> None:
        body = module.body if module else []
        self.classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
        self.names = _top_level_names(module) if module else None

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return what is wrong with the parameters."""
        spec = app_specs_func_def.args
        messages = []
        for arg in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]:
            if arg.annotation is None:
                messages.append(self._message(arg, f"the parameter {arg.arg!r} has no type annotation"))
            else:
                messages += self._check(arg, arg.annotation)
        if spec.vararg is not None:
            if spec.vararg.annotation is None:
                text = f"*{spec.vararg.arg} has no type annotation; str is assumed"
                messages.append(self._message(spec.vararg, text, "warning"))
            else:
                messages += self._check(spec.vararg, spec.vararg.annotation)
        if spec.kwarg is not None:
            text = (
                f"**{spec.kwarg.arg} cannot be written on a command line; name the parameters, or use *args"
            )
            messages.append(self._message(spec.kwarg, text))
        return messages

    def _check(self, arg: ast.arg, annotation: ast.expr) -> Iterator[LinterMessage]:
        for problem in self._problems(annotation):
            yield self._message(arg, f"the parameter {arg.arg!r}: {problem}")

    def _problems(self, annotation: ast.expr) -> Iterator[str]:
        node = _unquoted(annotation)
        if isinstance(node, ast.Constant):
            if node.value is not None and node.value is not Ellipsis:
                yield f"{node.value!r} is not a type"
        elif isinstance(node, ast.Name):
            yield from self._name_problems(node.id)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            yield from self._problems(node.left)
            yield from self._problems(node.right)
        elif isinstance(node, ast.Subscript):
            yield from self._subscript_problems(node)
        elif node is not None and not isinstance(node, ast.Attribute):
            yield f"{ast.unparse(node)!r} is not a type"

    def _name_problems(self, name: str) -> Iterator[str]:
        if name in self.classes:
            if not _is_value_class(self.classes[name], self.classes):
                yield f"the class {name} is neither a dataclass nor an Enum; {_USE}"
        elif name in _SCALARS | _CONTAINERS:
            return
        elif hasattr(builtins, name):
            yield f"values of type {name} cannot be given as arguments; {_USE}"
        elif self.names is not None and "*" not in self.names and name not in self.names:
            yield f"the name {name!r} is not defined"

    def _subscript_problems(self, node: ast.Subscript) -> Iterator[str]:
        name, items = _last_name(node.value), _items(node)
        if name == "Literal":
            return
        if name == "Annotated":
            yield from self._problems(items[0])
        elif name in _CONTAINERS | _WRAPPERS:
            for item in items:
                yield from self._problems(item)
        else:
            yield f"values of type {ast.unparse(node)} cannot be given as arguments; {_USE}"


class DefaultValidator(ComponentFunctionValidator):
    """Checks that literal defaults match their types."""

    _TYPES: dict[str, type | tuple[type, ...]] = {
        "str": str,
        "int": int,
        "float": (int, float),
        "bool": bool,
    }

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return the defaults that do not match."""
        spec = app_specs_func_def.args
        positional = [*spec.posonlyargs, *spec.args]
        pairs: list[tuple[ast.arg, ast.expr | None]] = list(
            zip(positional[len(positional) - len(spec.defaults) :], spec.defaults, strict=True)
        )
        pairs += zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
        return [
            self._message(
                default, f"the default of {arg.arg!r}, {ast.unparse(default)}, does not match its type"
            )
            for arg, default in pairs
            if default is not None and not self._fits(arg.annotation, default)
        ]

    def _fits(self, annotation: ast.expr | None, default: ast.expr) -> bool:
        annotation = _unquoted(annotation)
        try:
            value = ast.literal_eval(default)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return True
        if value is None:
            return True
        if isinstance(annotation, ast.Subscript) and _last_name(annotation.value) == "Literal":
            choices = _items(annotation)
            known = [choice.value for choice in choices if isinstance(choice, ast.Constant)]
            return len(known) < len(choices) or value in known
        name = annotation.id if isinstance(annotation, ast.Name) else ""
        expected = self._TYPES.get(name)
        if expected is None:
            return True
        return isinstance(value, expected) and (name == "bool" or not isinstance(value, bool))


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
        if not returns_appdef(returns, self.supported):
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
        spec = app_specs_func_def.args
        arguments = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
        names = {arg.arg for arg in arguments if arg is not None}
        _, notes = read_docstring(doc)
        node = app_specs_func_def.body[0]
        return [
            self._message(node, f"the docstring describes {name!r}, which is not a parameter", "warning")
            for name in notes
            if name not in names
        ]


def default_validators(module: ast.Module, *, docstring: bool = True) -> list[ComponentFunctionValidator]:
    """Return the checks for a component of this module."""
    checks = [ArgTypeValidator(module), DefaultValidator(), ReturnTypeValidator("AppDef")]
    return [*checks, DocstringValidator()] if docstring else checks


def _top_level_names(module: ast.Module) -> set[str]:
    """Return every name that the module binds outside functions; "*" for a star import."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif type(node).__name__ == "TypeAlias":  # Python 3.12
            names.add(node.name.id)  # type: ignore[attr-defined]
    return names


def _is_value_class(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """Tell whether a class is, or may be, a dataclass or an Enum, as far as the file shows."""
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if _last_name(target) == "dataclass":
            return True
    for base in node.bases:
        name = _last_name(base)
        if name in classes:
            if classes[name] is not node and _is_value_class(classes[name], classes):
                return True
        elif name not in dir(builtins) and name not in ("NamedTuple", "TypedDict", "Protocol", "ABC"):
            return True
    return bool(node.decorator_list)  # some other decorator may make it one


# ---- the predecessor's names


def validate(
    path: str, component_function: str, validators: Sequence[ComponentFunctionValidator] | None = None
) -> list[LinterMessage]:
    """Return the errors of a component (`lint_component` returns warnings too)."""
    messages = lint_component(path, component_function, validators, docstring=False)
    return [message for message in messages if message.severity == "error"]


def get_fn_docstring(fn: object) -> tuple[str, dict[str, str]]:
    """Return the description in a function's docstring, and its notes by parameter name."""
    doc = getattr(fn, "__doc__", None)
    text, notes = read_docstring(doc if not isinstance(fn, ast.FunctionDef) else ast.get_docstring(fn))
    return text.replace("\n\n", "\n"), notes
