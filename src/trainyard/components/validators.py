"""The checks that `trainyard.components.lint` makes.

Annotations are judged by what the file shows: a name that is imported gets the benefit of the doubt here, and
is checked for good when the component is loaded.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from trainyard.components.lint import ComponentFunctionValidator, LinterMessage, returns_appdef

_SCALARS = {"str", "int", "float", "bool", "object", "Any", "None", "Path", "PurePath"}
_CONTAINERS = {"list", "dict", "tuple", "List", "Dict", "Tuple"}
_CONTAINERS |= {"Sequence", "MutableSequence", "Mapping", "MutableMapping"}
_WRAPPERS = {"Optional", "Union"}
_USE = (
    "use str, int, float, bool, Path, Literal, an Enum, a dataclass, or list, dict, tuple, Optional of those"
)


class ArgTypeValidator(ComponentFunctionValidator):
    """Every parameter is annotated, with a type that can be written as text; there is no ``**kwargs``."""

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
                text = f"*{spec.vararg.arg} has no type annotation; str is taken"
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

    def _problems(self, node: ast.expr) -> Iterator[str]:
        if isinstance(node, ast.Constant):
            yield from self._constant_problems(node)
        elif isinstance(node, ast.Name):
            yield from self._name_problems(node.id)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            yield from self._problems(node.left)
            yield from self._problems(node.right)
        elif isinstance(node, ast.Subscript):
            yield from self._subscript_problems(node)
        elif not isinstance(node, ast.Attribute):
            yield f"{ast.unparse(node)!r} is no type"

    def _constant_problems(self, node: ast.Constant) -> Iterator[str]:
        if isinstance(node.value, str):
            try:
                yield from self._problems(ast.parse(node.value.strip(), mode="eval").body)
            except SyntaxError:
                yield f"{node.value!r} is no type"
        elif node.value is not None and node.value is not Ellipsis:
            yield f"{node.value!r} is no type"

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
        name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
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
    """A default that is written out fits the type that is written out."""

    _TYPES: dict[str, type | tuple[type, ...]] = {
        "str": str,
        "int": int,
        "float": (int, float),
        "bool": bool,
    }

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return the defaults that do not fit."""
        spec = app_specs_func_def.args
        positional = [*spec.posonlyargs, *spec.args]
        pairs: list[tuple[ast.arg, ast.expr | None]] = list(
            zip(positional[len(positional) - len(spec.defaults) :], spec.defaults, strict=True)
        )
        pairs += zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
        return [
            self._message(
                default, f"the default of {arg.arg!r}, {ast.unparse(default)}, does not fit its type"
            )
            for arg, default in pairs
            if default is not None and not self._fits(arg.annotation, default)
        ]

    def _fits(self, annotation: ast.expr | None, default: ast.expr) -> bool:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value.strip(), mode="eval").body
            except SyntaxError:
                return True
        try:
            value = ast.literal_eval(default)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return True
        if value is None:
            return True
        if isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Literal":
            choices = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
            return not all(isinstance(c, ast.Constant) for c in choices) or value in [
                choice.value for choice in choices if isinstance(choice, ast.Constant)
            ]
        name = annotation.id if isinstance(annotation, ast.Name) else ""
        expected = self._TYPES.get(name)
        if expected is None:
            return True
        return isinstance(value, expected) and (name == "bool" or not isinstance(value, bool))


class ReturnTypeValidator(ComponentFunctionValidator):
    """The function says that it returns an AppDef."""

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
    """The docstring is there and describes parameters that exist. Warnings only."""

    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Return how the docstring differs from the signature."""
        from trainyard.components.component_help import read_docstring

        doc = ast.get_docstring(app_specs_func_def)
        if not doc:
            text = "it has no docstring; its help will be bare"
            return [self._message(app_specs_func_def, text, "warning")]
        spec = app_specs_func_def.args
        arguments = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
        names = {arg.arg for arg in arguments if arg is not None}
        _, notes = read_docstring(doc)
        node = app_specs_func_def.body[0]
        return [
            self._message(node, f"the docstring describes {name!r}, which is no parameter", "warning")
            for name in notes
            if name not in names
        ]


def default_validators(module: ast.Module, *, docstring: bool = True) -> list[ComponentFunctionValidator]:
    """Return the checks for a component of this module."""
    checks = [ArgTypeValidator(module), DefaultValidator(), ReturnTypeValidator("AppDef")]
    return [*checks, DocstringValidator()] if docstring else checks


def _top_level_names(module: ast.Module) -> set[str]:
    """Return every name that some statement outside a function binds; "*" for a star import."""
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
    """Tell whether a class is a dataclass or an Enum, as far as the file shows; other bases count as yes."""
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        if (target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")) == "dataclass":
            return True
    for base in node.bases:
        name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
        if name in classes:
            if classes[name] is not node and _is_value_class(classes[name], classes):
                return True
        elif name not in dir(builtins) and name not in ("NamedTuple", "TypedDict", "Protocol", "ABC"):
            return True
    return bool(node.decorator_list)  # some other decorator may make it one
