"""Finding components by name.

A name is one of:

- a builtin: ``utils.echo`` (see `BUILTINS`; plugins cannot replace them);
- a function in a file: ``path/to/jobs.py:train``;
- a function in a module: ``my_team.jobs:train``; where its file does not mention `AppDef`, it is
  not a component: the job calls it (see `shunter.components.function`);
- a plain script: ``./train.py``, which `shunter.components.train.script` runs;
- a component of an installed distribution with an entry point of the group ``shunter.components`` (or
  ``torchx.components``): ``PREFIX = package`` offers ``PREFIX.function`` and, for modules within the package,
  ``PREFIX.module.function``. A prefix that is ``_`` or ``_0``, ``_1``, ... is left out of the name.
  ``NAME = module:function`` offers that one function.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from shunter.components import file_linter, function, train, user_code
from shunter.components.component import Component, guarded
from shunter.components.file_linter import component_functions, public_functions, written_parameters
from shunter.components.parameters import Parameter
from shunter.errors import (
    ComponentFileNotFoundError,
    ComponentNotFoundException,
    ConfigError,
    did_you_mean,
)
from shunter.plugins import EntryPoint, entry_points

# Written out so that a name costs the import of its own module only; a test compares it with the modules.
BUILTINS: dict[str, tuple[str, ...]] = {
    "dist": ("ddp", "spmd", "torchrun"),
    "metrics": ("tensorboard",),
    "serve": ("torchserve",),
    "train": ("script",),
    "utils": ("binary", "booth", "copy", "dev", "echo", "hydra", "python", "sh", "touch"),
}
_SCRIPT_EXAMPLE = "Name a script, such as ./train.py."
_NO_PREFIX = re.compile(r"_\d*")


@dataclass
class ComponentInfo:
    """A component as it is listed, with its source, which is not imported for that.

    ``error`` says why the components of a plugin are not listed.
    """

    name: str
    summary: str
    origin: str
    error: str = ""
    path: str = ""
    function: str = ""


def get_component(name: str) -> Component:
    """Return the component of a name; this module's docstring lists the kinds of names.

    Raises:
        ComponentNotFoundException: there is none; the hint holds similar names.
        ComponentValidationException: the function is not a valid component; all problems with file and line.
        ConfigError: the file or module raises when it is imported.
    """
    place, colon, fn_name = name.rpartition(":")
    if colon:
        return _from_file(name, place, fn_name) if _is_path(place) else _from_module(name, place, fn_name)
    if is_script(name):
        return _plain_script(name)
    short = name.removeprefix("torchx.components.")  # as TorchX's documentation writes them too
    component = _builtin(short) if _is_builtin(short) else _from_entry_points(name)
    if component is None:
        raise _not_found(name)
    return component


def list_components() -> list[ComponentInfo]:
    """Return every builtin and every component behind an entry point, by name, with its summary.

    Nothing of a plugin is imported. One whose source is not found gives one entry with an ``error``.
    """
    names = [f"{module}.{fn}" for module, functions in BUILTINS.items() for fn in functions]
    infos = {name: ComponentInfo(name, _builtin(name).summary, "builtin") for name in names}
    for point in entry_points("components"):
        for info in _components_behind(point):
            infos.setdefault(info.name, info)
    return [infos[name] for name in sorted(infos)]


def component_names() -> list[str]:
    """Return all names, sorted, without importing a plugin: for completion and suggestions."""
    return [info.name for info in list_components() if not info.error]


def names_in(place: str) -> list[str]:
    """Return ``place:function`` for the components of a file or module, without importing it."""
    return [f"{place}:{function}" for function in component_functions(_source_file(place))]


def parameters_for_completion(name: str) -> Sequence[Parameter]:
    """Return the parameters of a component, read from the source unless it is a builtin.

    Raises:
        ComponentNotFoundException: there is no such component.
    """
    place, colon, fn_name = name.rpartition(":")
    if colon:
        return written_parameters(_source_file(place), fn_name)
    if _is_path(name) or _is_builtin(name):
        return get_component(name).parameters
    infos = [info for info in list_components() if info.name == name]
    return written_parameters(infos[0].path, infos[0].function) if infos else []


def get_components() -> dict[str, Component]:
    """Return every builtin and every usable component behind an entry point, by name."""
    components = {}
    for info in list_components():
        with contextlib.suppress(ConfigError):
            components[info.name] = get_component(info.name)
    return components


def get_builtin_source(name: str) -> str:
    """Return the source of a component's module, as a starting point for your own."""
    fn = inspect.unwrap(get_component(name).fn)
    return inspect.getsource(inspect.getmodule(fn) or fn)


# ---- the kinds


def is_script(name: str) -> bool:
    """Tell whether a component's name is that of a plain script: a path without a function.

    ``utils.sh`` is a component; another name in ``.sh`` may be a plugin's.
    """
    is_shell = name.endswith(".sh") and not _is_builtin(name) and os.path.isfile(name)
    return is_shell or (":" not in name and _is_path(name))


def _is_path(place: str) -> bool:
    return place.endswith(".py") or os.sep in place


def _is_builtin(name: str) -> bool:
    module, _, function = name.rpartition(".")
    return function in BUILTINS.get(module, ())


def _builtin(name: str) -> Component:
    module, _, function = name.rpartition(".")
    fn = getattr(import_module(f"shunter.components.{module}"), function)
    return Component(name, fn, origin="builtin")


def _from_file(name: str, path: str, fn_name: str) -> Component:
    path = os.path.expanduser(path)
    if not os.path.isfile(path):
        raise _no_file(path)
    if file_linter.is_plain_function(path, fn_name):
        target = function.target_of(path, fn_name)
        found = getattr(user_code.load_file(path), fn_name)
        return function.FunctionComponent(name, found, target, os.path.abspath(path))
    file_linter.require_clean(path, fn_name)
    return _from_namespace(name, user_code.load_file(path), fn_name, os.path.abspath(path))


def _from_module(name: str, module_name: str, fn_name: str) -> Component:
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ComponentNotFoundException(
            f"{name!r} is not a component: {module_name!r} is neither a file nor a module",
            hint="Write path/to/file.py:function or package.module:function." + _as_command(name),
        )
    module = user_code.load_module(module_name)
    path = getattr(module, "__file__", None)
    if path and path.endswith(".py"):
        if file_linter.is_plain_function(path, fn_name):
            target, origin = f"{module_name}:{fn_name}", f"module {module_name}"
            return function.FunctionComponent(name, getattr(module, fn_name), target, origin)
        file_linter.require_clean(path, fn_name)
    return _from_namespace(name, module, fn_name, f"module {module_name}")


def _from_namespace(name: str, module: ModuleType, fn_name: str, origin: str) -> Component:
    fn = getattr(module, fn_name, None)
    if not callable(fn):
        place = name.rpartition(":")[0]
        functions = public_functions(getattr(module, "__file__", None))
        hint = did_you_mean(name, [f"{place}:{function}" for function in functions])
        raise ComponentNotFoundException(
            f"{name!r}: there is no function {fn_name!r} in {origin}",
            hint=hint or "It has no functions.",
        )
    component = Component(name, fn, origin=origin)
    _ = component.parameters  # reports an unusable signature now
    return component


def _plain_script(path: str) -> Component:
    if not os.path.isfile(os.path.expanduser(path)):
        raise _no_file(path)
    if not path.endswith((".py", ".sh")):
        raise ComponentNotFoundException(
            f"{path} is neither a Python nor a shell script (.py, .sh)", hint=_of_other_file(path)
        )
    return Component(path, train.script, origin="script", config_name="train.script", preset={"script": path})


def _no_file(path: str) -> ComponentNotFoundException:
    if os.path.exists(path):
        if not os.path.isdir(path):
            return ComponentNotFoundException(f"{path} is not a regular file", hint=_SCRIPT_EXAMPLE)
        scripts = sorted(str(file) for file in Path(path).glob("*.*") if file.suffix in (".py", ".sh"))
        hint = f"It has: {', '.join(map(shlex.quote, scripts[:8]))}." if scripts else _SCRIPT_EXAMPLE
        return ComponentNotFoundException(f"{path} is a directory", hint=hint)
    directory = os.path.dirname(path)
    try:
        files = [os.path.join(directory, name) for name in os.listdir(directory or ".")]
    except OSError as error:
        return ComponentFileNotFoundError(
            f"there is no file {path}", hint=f"The directory {directory} cannot be read: {error.strerror}."
        )
    similar = did_you_mean(path, [shlex.quote(file) for file in files if file.endswith((".py", ".sh"))])
    return ComponentFileNotFoundError(f"{path} does not exist", hint=similar)


def _of_other_file(path: str) -> str:
    """Return how to run a file that is not a script."""
    if path.endswith(".ipynb"):
        script = shlex.quote(f"{path.removesuffix('.ipynb')}.py")
        return (
            f"Make it a script: jupyter nbconvert --to script {shlex.quote(path)}, then: shunter run {script}"
            "\nIts cells one by one: `%%shunter` in the notebook."
        )
    if not os.access(path, os.X_OK):
        return f"It is not executable: name the program that reads it, such as: shunter run -- cat {path}"
    return f"For other programs: shunter run -- {path}"


def _as_command(text: str) -> str:
    """Return the hint about a whole command line, or Python, in one word; "" if it is neither."""
    if text.startswith("lambda"):
        return f"\nFor an expression: shunter run -- python -c {shlex.quote(text)}"
    try:
        words = shlex.split(text)
    except ValueError:
        return ""
    if len(words) < 2 or not shutil.which(words[0]):
        return ""
    if not re.search(r"[;&|<>$`*]", text):
        separator = "" if words[0] in ("python", "python3") and words[1].endswith(".py") else "-- "
        return f" For the command, without quotes: shunter run {separator}{text}"
    return f" For the line of a shell: shunter run -- sh -c {shlex.quote(text)}"


def _not_found(name: str) -> ComponentNotFoundException:
    hint = did_you_mean(name, component_names())
    if not hint.startswith("Did"):
        hint = "`shunter components` lists them."
    module, _, fn_name = name.rpartition(".")
    if fn_name in public_functions(f"{module}.py"):
        hint = f"For the function, write {module}.py:{fn_name}."
    if os.path.isfile(name + ".py"):
        hint += f" For the script, write ./{name}.py."
    elif os.path.isfile(name):
        hint = _of_other_file(f"./{name}")
    elif os.path.isdir(name):
        return _no_file(name)
    elif " " in name.strip():
        hint += _as_command(name)
    elif shutil.which(name):
        hint += f" For the program, write: shunter run -- {name}"
    elif name.endswith(".sh"):
        return _no_file(name)
    return ComponentNotFoundException(f"there is no component {name!r}", hint=hint)


# ---- entry points


def _prefix(point: EntryPoint) -> str:
    return "" if _NO_PREFIX.fullmatch(point.name) else f"{point.name}."


def _origin(point: EntryPoint) -> str:
    return f"{point.group}: {point.name} = {point.value}"


def _from_entry_points(name: str) -> Component | None:
    failure: ConfigError | None = None
    for point in entry_points("components"):
        try:
            fn = _function_behind(point, name)
        except ConfigError as error:
            failure = failure or error
            continue
        if fn is not None:
            path = getattr(getattr(fn, "__code__", None), "co_filename", "")
            if os.path.isfile(path):
                file_linter.require_clean(path, fn.__name__)
            return Component(name, fn, origin=_origin(point))
    if failure is not None:
        raise failure
    return None


def _function_behind(point: EntryPoint, name: str) -> Callable[..., Any] | None:
    """Return the function of this name behind an entry point; imports only its module."""
    prefix = _prefix(point)
    *modules, fn_name = name.removeprefix(prefix).split(".")
    value = ".".join([point.value, *modules])
    if ":" in point.value:
        if name != point.name:
            return None
        value = point.value
    elif not name.startswith(prefix) or (modules and _source_of(value) is None):
        return None
    with guarded(f"loading the plugin {point.name} failed", value):
        fn = EntryPoint(point.group, point.name, value).load()
    if value != point.value or ":" not in value:
        fn = getattr(fn, fn_name, None)
    elif not callable(fn):
        raise ConfigError(f"the plugin {point.name} = {point.value} is not a function")
    return fn if callable(fn) else None


def _components_behind(point: EntryPoint) -> Iterator[ComponentInfo]:
    """Yield the components behind an entry point without importing them."""
    module, colon, attribute = point.value.partition(":")
    source = _source_of(module)
    if source is None:
        name = point.name if colon or _prefix(point) else module
        yield ComponentInfo(name, "", _origin(point), f"the source of {module} is not found")
    elif colon:
        path = _source_file(module)
        summary = component_functions(path).get(attribute, "")
        yield ComponentInfo(point.name, summary, _origin(point), path=path, function=attribute)
    else:
        for file in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            parts = [*file.relative_to(source).with_suffix("").parts] if file != source else []
            if parts[-1:] == ["__init__"]:
                parts.pop()
            if not all(part.isidentifier() and not part.startswith("_") for part in parts):
                continue
            for function, summary in component_functions(str(file)).items():
                name = _prefix(point) + ".".join([*parts, function])
                yield ComponentInfo(name, summary, _origin(point), path=str(file), function=function)


def _source_of(module_name: str) -> Path | None:
    """Return the file or directory of a module, found without importing its packages."""
    top, *inner = module_name.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):  # not a name, or a module that was made by hand
        return None
    if spec is None:
        return None
    for location in spec.submodule_search_locations or ():
        path = Path(location, *inner)
        if path.is_dir():
            return path
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
    return Path(spec.origin) if spec.origin and not inner else None


def _source_file(place: str) -> str:
    """Return the file of a component's place, which is a path or a module; "" if it is not found."""
    source = Path(place).expanduser() if _is_path(place) else _source_of(place)
    if source is None:
        return ""
    return str(source / "__init__.py" if source.is_dir() else source)
