"""Finding components by name.

A name is one of:

- a builtin: ``utils.echo`` (see `BUILTINS`; plugins cannot replace them);
- a function in a file: ``path/to/jobs.py:train``;
- a function in a module: ``my_team.jobs:train``;
- a plain script: ``./train.py``, which `shunter.components.train.script` runs;
- a component of an installed distribution with an entry point of the group ``shunter.components`` (or
  ``torchx.components``): ``PREFIX = package`` offers ``PREFIX.function`` and, for modules within the package,
  ``PREFIX.module.function``. A prefix that is ``_`` or ``_0``, ``_1``, ... is left out of the name.
  ``NAME = module:function`` offers that one function.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from shunter.components import file_linter, train, user_code
from shunter.components.builtin_source import standalone_source
from shunter.components.component import Component
from shunter.components.file_linter import component_functions, written_parameters
from shunter.components.parameters import Parameter
from shunter.components.user_code import guarded
from shunter.errors import (
    ComponentFileNotFoundError,
    ComponentNotFoundException,
    ComponentValidationException,
    ConfigError,
    did_you_mean,
)
from shunter.plugins import EntryPoint, entry_points

# Written out so that listing names imports nothing; a test compares it with the modules.
BUILTINS: dict[str, tuple[str, ...]] = {
    "dist": ("ddp", "spmd", "torchrun"),
    "metrics": ("tensorboard",),
    "serve": ("torchserve",),
    "train": ("script",),
    "utils": ("binary", "booth", "copy", "echo", "hydra", "python", "sh", "touch"),
}
_NO_PREFIX = re.compile(r"_\d*")


class ComponentInfo:
    """An entry in the list of components. ``error`` says why a plugin's module could not be listed."""

    def __init__(self, name: str, summary: str, origin: str, error: str = "") -> None:
        self.name = name
        self.summary = summary
        self.origin = origin
        self.error = error

    def __repr__(self) -> str:
        return f"ComponentInfo({self.name!r}, {self.summary!r}, {self.origin!r})"


def get_component(name: str) -> Component:
    """Return the component of a name; this module's docstring lists the kinds of names.

    Raises:
        ComponentNotFoundException: there is none; the hint holds similar names.
        ComponentValidationException: the function is not a valid component; all problems with file and line.
        ConfigError: the file or module raises when it is imported.
    """
    place, colon, fn_name = name.rpartition(":")
    if colon:
        if place.endswith(".py") or os.sep in place:
            return _from_file(name, place, fn_name)
        return _from_module(name, place, fn_name)
    if name.endswith(".py") or os.sep in name:
        return _plain_script(name)
    short = name.removeprefix("torchx.components.")  # as TorchX's documentation writes them too
    module, _, function = short.rpartition(".")
    if function in BUILTINS.get(module, ()):
        return _builtin(short)
    component = _from_entry_points(name)
    if component is None:
        raise _not_found(name)
    return component


def component_names() -> list[str]:
    """Return all names, sorted, without importing a component: for completion and suggestions.

    Functions behind entry points are read from their sources; if those are not found (in a zip file, for
    example), only the prefix is returned, with a dot at its end.
    """
    names = [f"{module}.{fn}" for module, functions in BUILTINS.items() for fn in functions]
    for point in _entry_points():
        names += _names_behind(point)
    return sorted(set(names))


def names_in(place: str) -> list[str]:
    """Return ``place:function`` for the components of a file or module, without importing it."""
    source = _written_source(place)
    return [f"{place}:{function}" for function in (component_functions(source) if source else ())]


def parameters_for_completion(name: str) -> Sequence[Parameter]:
    """Return the parameters of a component, read from the source unless it is a builtin.

    Raises:
        ComponentNotFoundException: there is no such component.
    """
    place, colon, fn_name = name.rpartition(":")
    if colon:
        source = _written_source(place)
        return written_parameters(source, fn_name) if source else []
    module, _, function = name.rpartition(".")
    if name.endswith(".py") or os.sep in name or function in BUILTINS.get(module, ()):
        return get_component(name).parameters
    for point in _entry_points():
        for found, source, fn_name in _functions_behind(point):
            if found == name:
                return written_parameters(source, fn_name)
    return []


def _written_source(place: str) -> str | None:
    if place.endswith(".py") or os.sep in place:
        return os.path.expanduser(place)
    source = _source_of(place)
    return os.path.join(source, "__init__.py") if source and os.path.isdir(source) else source


def list_components() -> list[ComponentInfo]:
    """Return every builtin and every component behind an entry point, by name, with its summary.

    A plugin that cannot be imported gives one entry with an ``error``.
    """
    infos: dict[str, ComponentInfo] = {}
    for module, functions in BUILTINS.items():
        for fn in functions:
            component = _builtin(f"{module}.{fn}")
            infos[component.name] = ComponentInfo(component.name, component.summary, "builtin")
    for point in _entry_points():
        for info in _infos_behind(point):
            infos.setdefault(info.name, info)
    return [infos[name] for name in sorted(infos)]


def get_components() -> dict[str, Component]:
    """Return every builtin and every usable component behind an entry point, by name."""
    found = {}
    for info in list_components():
        if info.error:
            continue
        try:
            component = get_component(info.name)
        except ComponentValidationException:
            continue
        found[info.name] = component
    return found


def get_builtin_source(name: str) -> str:
    """Return the source of a component, with its imports and helpers, as a starting point for your own."""
    fn = inspect.unwrap(get_component(name).fn)
    return standalone_source(inspect.getsource(inspect.getmodule(fn) or fn), fn.__name__)


# ---- the kinds


def _builtin(name: str) -> Component:
    module, _, function = name.rpartition(".")
    fn = getattr(import_module(f"shunter.components.{module}"), function)
    return Component(name, fn, origin="builtin")


def _from_file(name: str, path: str, fn_name: str) -> Component:
    path = os.path.expanduser(path)
    if not os.path.isfile(path):
        raise _no_file(path)
    file_linter.require_clean(path, fn_name)
    return _from_namespace(name, user_code.load_file(path), fn_name, os.path.abspath(path))


def _from_module(name: str, module_name: str, fn_name: str) -> Component:
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ComponentNotFoundException(
            f"{name!r} is not a component: {module_name!r} is neither a file nor a module",
            hint="Write path/to/file.py:function or package.module:function.",
        )
    module = user_code.load_module(module_name)
    path = getattr(module, "__file__", None)
    if path and path.endswith(".py"):
        file_linter.require_clean(path, fn_name)
    return _from_namespace(name, module, fn_name, f"module {module_name}")


def _from_namespace(name: str, module: ModuleType, fn_name: str, origin: str) -> Component:
    fn = getattr(module, fn_name, None)
    if not callable(fn):
        known = [known_name for known_name, _ in _components_in(module)]
        hint = did_you_mean(fn_name, known) or "No function there returns an AppDef."
        raise ComponentNotFoundException(f"{name!r}: there is no function {fn_name!r} in {origin}", hint=hint)
    component = Component(name, fn, origin=origin)
    _ = component.parameters  # reports an unusable signature now
    return component


def _plain_script(path: str) -> Component:
    if not os.path.isfile(os.path.expanduser(path)):
        raise _no_file(path)
    if not path.endswith((".py", ".sh")):
        raise ComponentNotFoundException(
            f"{path} is neither a Python nor a shell script (.py, .sh)",
            hint=f"For other programs: shunter run utils.binary --entrypoint {path} -- ARGUMENTS",
        )
    return Component(path, train.script, origin="script", config_name="train.script", preset={"script": path})


def _no_file(path: str) -> ComponentNotFoundException:
    directory = os.path.dirname(path) or "."
    try:
        near = [os.path.join(os.path.dirname(path), n) for n in os.listdir(directory) if n.endswith(".py")]
    except OSError as error:
        return ComponentFileNotFoundError(
            f"there is no file {path}", hint=f"The directory {directory} cannot be read: {error.strerror}."
        )
    what = "does not exist"
    if os.path.exists(path):
        what = "is a directory" if os.path.isdir(path) else "is not a regular file"
    kind = ComponentNotFoundException if os.path.exists(path) else ComponentFileNotFoundError
    return kind(f"{path} {what}", hint=did_you_mean(path, near))


def _not_found(name: str) -> ComponentNotFoundException:
    hint = did_you_mean(name, component_names())
    if not hint.startswith("Did"):
        hint = "`shunter components` lists them."
    if os.path.isfile(name + ".py"):
        hint += f" For the script, write ./{name}.py."
    elif os.path.isfile(name):
        hint += f" For the program, write: utils.binary --entrypoint ./{name}"
    return ComponentNotFoundException(f"there is no component {name!r}", hint=hint)


# ---- entry points


def _entry_points() -> list[EntryPoint]:
    return entry_points("components")


def _prefix(point: EntryPoint) -> str:
    return "" if _NO_PREFIX.fullmatch(point.name) else f"{point.name}."


def _from_entry_points(name: str) -> Component | None:
    failures: list[ConfigError] = []
    for point in _entry_points():
        try:
            found = _function_behind(point, name)
        except ConfigError as error:
            failures.append(error)
            continue
        if found is not None:
            path = getattr(getattr(found, "__code__", None), "co_filename", "")
            if os.path.isfile(path):
                file_linter.require_clean(path, found.__name__)
            return Component(name, found, origin=f"{point.group}: {point.name} = {point.value}")
    if failures:
        raise failures[0]
    return None


def _function_behind(point: EntryPoint, name: str) -> Callable[..., Any] | None:
    """Return the function of this name behind an entry point; imports only its module."""
    if ":" in point.value:
        return _loaded_function(point) if name == point.name else None
    prefix = _prefix(point)
    if not name.startswith(prefix):
        return None
    *modules, fn_name = name[len(prefix) :].split(".")
    module_name = ".".join([point.value, *modules])
    if modules and _source_of(module_name) is None:
        return None
    fn = getattr(_load(point, module_name), fn_name, None)
    return fn if callable(fn) else None


def _loaded_function(point: EntryPoint) -> Callable[..., Any]:
    with guarded(f"loading the plugin {point.name} failed", point.value):
        fn = point.load()
    if not callable(fn):
        raise ConfigError(f"the plugin {point.name} = {point.value} is not a function")
    found: Callable[..., Any] = fn
    return found


def _load(point: EntryPoint, module_name: str) -> ModuleType:
    with guarded(f"loading the plugin {point.name} failed", module_name):
        module: ModuleType = EntryPoint(point.group, point.name, module_name).load()
    return module


def _infos_behind(point: EntryPoint) -> Iterator[ComponentInfo]:
    origin = f"{point.group}: {point.name} = {point.value}"
    try:
        if ":" in point.value:
            yield ComponentInfo(point.name, Component(point.name, _loaded_function(point)).summary, origin)
            return
        for module_name, prefix in _modules_behind(point):
            for fn_name, fn in _components_in(_load(point, module_name)):
                yield ComponentInfo(prefix + fn_name, Component(fn_name, fn).summary, origin)
    except ConfigError as error:
        yield ComponentInfo(_prefix(point).rstrip(".") or point.value, "", origin, error=str(error))


def _modules_behind(point: EntryPoint) -> Iterator[tuple[str, str]]:
    """Yield the modules of an entry point, each with the prefix of its components' names."""
    yield point.value, _prefix(point)
    source = _source_of(point.value)
    if source is None or not os.path.isdir(source):
        return
    for directory, subdirectories, files in os.walk(source):  # finds namespace packages too
        subdirectories[:] = sorted(d for d in subdirectories if d.isidentifier() and not d.startswith("_"))
        parts = [part for part in os.path.relpath(directory, source).split(os.sep) if part != "."]
        if parts and "__init__.py" in files:
            yield ".".join([point.value, *parts]), f"{_prefix(point)}{'.'.join(parts)}."
        for file in sorted(files):
            stem = file.removesuffix(".py")
            if file.endswith(".py") and stem.isidentifier() and not stem.startswith("_"):
                inner = ".".join([*parts, stem])
                yield f"{point.value}.{inner}", f"{_prefix(point)}{inner}."


def _source_of(module_name: str) -> str | None:
    """Return the file or directory of a module, found without importing its packages."""
    relative = module_name.replace(".", os.sep)
    for base in sys.path:
        path = os.path.join(base or ".", relative)
        if os.path.isfile(path + ".py"):
            return path + ".py"
        if os.path.isdir(path):
            return path
    module = sys.modules.get(module_name)
    return getattr(module, "__file__", None)


def _components_in(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions of a module whose return annotation is AppDef."""
    for name, value in vars(module).items():
        if name.startswith("_") or not callable(value) or isinstance(value, type):
            continue
        returns = getattr(value, "__annotations__", {}).get("return")
        returns = returns if isinstance(returns, str) else getattr(returns, "__name__", "")
        if getattr(value, "__module__", None) == module.__name__ and returns.split(".")[-1] == "AppDef":
            yield name, value


def _names_behind(point: EntryPoint) -> list[str]:
    if ":" in point.value:
        return [point.name]
    names = [name for name, _, _ in _functions_behind(point)]
    return names or ([_prefix(point)] if _prefix(point) else [])


def _functions_behind(point: EntryPoint) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each component behind an entry point, its source file, and its function's name."""
    module, colon, attribute = point.value.partition(":")
    if colon:
        source = _written_source(module)
        if source:
            yield point.name, source, attribute
        return
    for module_name, prefix in _modules_behind(point):
        source = _written_source(module_name)
        for fn in component_functions(source) if source else ():
            yield prefix + fn, source or "", fn
