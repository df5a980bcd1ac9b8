"""TorchX's classes around components: finding them, linting them, parsing their arguments."""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import logging
import os
import pkgutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from shunter.components import finder, materialize
from shunter.components.component_help import read_docstring
from shunter.components.file_linter import (
    ArgTypeValidator,
    ComponentFunctionValidator,
    LinterMessage,
    ReturnTypeValidator,
    lint_component,
)
from shunter.components.file_linter import validate as validate
from shunter.components.structured_arg import Nodes, StructuredNameArgument
from shunter.errors import ComponentArgumentError, ComponentValidationException
from shunter.specs.app import AppDef

logger = logging.getLogger(__name__)
Validators = list[ComponentFunctionValidator]
F = TypeVar("F", bound=Callable[..., Any])


# ---- torchx.specs.builders


class ComponentArgumentExit(ComponentArgumentError, SystemExit):
    """Arguments that do not fit a component, or ``--help`` among them.

    A `SystemExit` too, since TorchX parses arguments with argparse, which ends the program.
    """

    def __init__(self, message: str, *, hint: str = "", code: int = 2) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = self.code = code


def exits_like_argparse(function: F) -> F:
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


materialize_appdef = exits_like_argparse(materialize.materialize_appdef)
component_args_from_str = exits_like_argparse(materialize.component_args_from_str)


def parse_args(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> argparse.Namespace:
    """Return the values of a component's parameters, by name, as a command line gives them."""
    given = component_args_from_str(cmpnt_fn, cmpnt_args, cmpnt_defaults, config)
    values = {**given.positional_args, **given.kwargs}
    for name, parameter in inspect.signature(cmpnt_fn).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            values[name] = given.var_args
    return argparse.Namespace(**values)


# ---- torchx.specs.finder


@dataclass
class FoundComponent:
    """A component, and what is wrong with it."""

    name: str
    description: str
    fn_name: str
    fn: Callable[..., AppDef]
    validation_errors: list[str] = field(default_factory=list)


def get_component(name: str, validators: Validators | None = None) -> FoundComponent:
    """Return the component with this name.

    Raises:
        ComponentNotFoundException: there is none.
        ComponentValidationException: it is not valid.
    """
    found = finder.get_component(name)
    path = inspect.getsourcefile(inspect.unwrap(found.fn)) if validators else None
    problems = lint_component(path, found.fn.__name__, validators) if path else []
    if problems:
        lines = "\n".join(f"  {path}:{each.line}: {each.description}" for each in problems)
        raise ComponentValidationException(f"the component {name} cannot be used:\n{lines}")
    return _described(name, found.fn)


def get_components(validators: Validators | None = None) -> dict[str, FoundComponent]:
    """Return all components, by name: the builtin ones and those of plugins.

    One that is not valid has ``validation_errors``, and cannot be called.
    """
    found = {}
    for info in finder.list_components():
        if info.error:
            continue
        try:
            found[info.name] = get_component(info.name, validators)
        except ComponentValidationException as error:
            short = info.name.rpartition(".")[2]
            lines = str(error).splitlines()[1:] or [str(error)]
            found[info.name] = FoundComponent(info.name, info.summary, short, _refusing(error), lines)
    return found


def _refusing(error: ComponentValidationException) -> Callable[..., AppDef]:
    def refuse(*args: Any, **more: Any) -> AppDef:
        raise error

    return refuse


def get_builtin_source(name: str, validators: Validators | None = None) -> str:
    """Return the source of a builtin component as a standalone file."""
    return finder.get_builtin_source(name)


def _described(name: str, fn: Callable[..., AppDef]) -> FoundComponent:
    return FoundComponent(name, get_fn_docstring(fn)[0], getattr(fn, "__name__", name), fn)


class ComponentsFinder(ABC):
    """Finds components."""

    @abstractmethod
    def find(self, validators: Validators | None = None) -> list[FoundComponent]:
        """Return the components."""


class CustomComponentsFinder(ComponentsFinder):
    """Finds one function in a file."""

    def __init__(self, filepath: str, function_name: str) -> None:
        self._name = f"{filepath}:{function_name}"

    def find(self, validators: Validators | None = None) -> list[FoundComponent]:
        """Return the component of this function."""
        return [get_component(self._name, validators)]


class ModuleComponentsFinder(ComponentsFinder):
    """Finds the components in a module, and in the modules of a package.

    Args:
        module: the module, or its name.
        group: prefix of their names; "" for none.
    """

    def __init__(self, module: str | ModuleType, group: str) -> None:
        self.base_module = module
        self._group = group

    def find(self, validators: Validators | None = None) -> list[FoundComponent]:
        """Return the components."""
        base = import_module(self.base_module) if isinstance(self.base_module, str) else self.base_module
        if base.__name__.endswith("torchx.components"):  # the alias has no files to walk through
            builtins = [info.name for info in finder.list_components() if info.origin == "builtin"]
            prefix = f"{self._group}." if self._group else ""
            return [_described(prefix + name, get_component(name, validators).fn) for name in builtins]
        modules = [base]
        if is_package(base):
            below = pkgutil.walk_packages(base.__path__, f"{base.__name__}.")
            modules += [import_module(info.name) for info in below]
        found = []
        for module in modules:
            prefix = ".".join(part for part in (self._group, module_relname(module, base)) if part)
            for name, fn in vars(module).items():
                if _is_component(module, name, fn):
                    found.append(_described(f"{prefix}.{name}" if prefix else name, fn))
        return found


def _is_component(module: ModuleType, name: str, fn: Any) -> bool:
    if name.startswith("_") or not inspect.isfunction(fn) or fn.__module__ != module.__name__:
        return False
    path = inspect.getsourcefile(fn)
    return path is not None and not validate(path, name)


def is_package(module: ModuleType) -> bool:
    """Tell whether a module is a package."""
    return hasattr(module, "__path__")


def is_namespace_package(module: ModuleType) -> bool:
    """Tell whether a module is a package without an ``__init__.py``."""
    return is_package(module) and getattr(module, "__file__", None) is None


def module_relname(module: ModuleType, relative_to: ModuleType) -> str:
    """Return a module's name relative to a parent package; "" for the parent itself.

    Raises:
        ValueError: it is not below it.
    """
    name, base = module.__name__, relative_to.__name__
    if name == base:
        return ""
    if not name.startswith(f"{base}."):
        raise ValueError(f"the module {name} is not below {base}")
    return name[len(base) + 1 :]


# ---- torchx.specs.file_linter


def get_fn_docstring(fn: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """Return a function's description, and a note for each parameter: a blank for one that has none."""
    text, notes = read_docstring(fn.__doc__)
    names = inspect.signature(fn).parameters
    without = f"{fn.__name__} has no description. Tip: write a docstring, whose first line is shown here."
    return text.replace("\n\n", "\n") or without, {name: notes.get(name) or " " for name in names}


TorchxFunctionValidator = ComponentFunctionValidator
TorchxFunctionArgsValidator = ArgTypeValidator


class TorchxReturnValidator(ReturnTypeValidator):
    """Checks that a component returns an `AppDef`."""

    def __init__(self) -> None:
        super().__init__("AppDef")


class TorchXArgumentHelpFormatter(
    argparse.RawDescriptionHelpFormatter,
    argparse.ArgumentDefaultsHelpFormatter,
    argparse.MetavarTypeHelpFormatter,
):
    """Shows types and defaults of arguments, and keeps the lines of the description."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if isinstance(action, argparse._HelpAction):
            return text
        return f"{text} (required)" if action.required else f"{text} (default: {action.default})"

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return _type_of(action) or super(
            argparse.MetavarTypeHelpFormatter, self
        )._get_default_metavar_for_optional(action)

    def _get_default_metavar_for_positional(self, action: argparse.Action) -> str:
        return _type_of(action) or super(
            argparse.MetavarTypeHelpFormatter, self
        )._get_default_metavar_for_positional(action)


def _type_of(action: argparse.Action) -> str:
    return getattr(action.type, "__name__", "")


class ComponentFnVisitor(ast.NodeVisitor):
    """Checks one function while it visits a file's syntax tree; ``linter_errors`` holds what is wrong."""

    def __init__(self, component_function_name: str, validators: Validators | None = None) -> None:
        self.component_function_name = component_function_name
        self.validators = [ArgTypeValidator(), TorchxReturnValidator()] if validators is None else validators
        self.linter_errors: list[LinterMessage] = []
        self.visited_function = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Check the function if it is the component function."""
        if node.name == self.component_function_name:
            self.visited_function = True
            for validator in self.validators:
                self.linter_errors += validator.validate(node)


class TorchFunctionVisitor(ComponentFnVisitor):
    """Checks a function like `ComponentFnVisitor`, always with TorchX's own rules."""

    def __init__(self, component_function_name: str) -> None:
        super().__init__(component_function_name)


def OK() -> list[LinterMessage]:  # noqa: N802 - TorchX's name
    """Return what a validator returns if it finds nothing wrong."""
    return []


def get_optional_type(arg: ast.expr) -> ast.expr | None:
    """Return the ``T`` of ``Optional[T]``, ``T | None`` or ``None | T``; None for any other type."""
    if isinstance(arg, ast.Subscript) and _name_of(arg.value) == "Optional":
        return arg.slice
    if isinstance(arg, ast.BinOp) and isinstance(arg.op, ast.BitOr):
        for one, other in ((arg.left, arg.right), (arg.right, arg.left)):
            if isinstance(other, ast.Constant) and other.value is None:
                return one
    return None


def get_generic_type(arg: ast.expr) -> ast.expr | None:
    """Return the ``list`` of ``list[T]``; None if the annotation has no parameters."""
    return arg.value if isinstance(arg, ast.Subscript) else None


def is_primitive_annotation(arg: ast.expr) -> bool:
    """Tell whether an annotation is a bare name."""
    return isinstance(arg, ast.Name)


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


# ---- torchx.components.dist


def get_role_name(script: str | None, m: str | None) -> str:
    """Return the name of a role that runs a script or a module.

    Raises:
        ValueError: neither is given.
    """
    if not script and not m:
        raise ValueError("a role is named after its script or module, and neither is given")
    name = os.path.splitext(os.path.basename(script))[0] if script else str(m).rpartition(".")[2]
    return StructuredNameArgument("", name).run_name


def parse_nnodes(j: str) -> tuple[int, int, int, str]:
    """Return the fewest and most nodes, the processes on each, and the text for torchrun's ``--nnodes``."""
    nodes = Nodes.parse(j)
    return nodes.min_nodes or nodes.nodes, nodes.nodes, nodes.processes, str(nodes)
