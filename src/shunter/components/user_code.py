"""Importing the files and modules of users.

A file is imported under a unique name in ``sys.modules`` and with its directory on ``sys.path``, so that
dataclasses, pickling, relative data and imports of its neighbours work as in any module. Output of user code
goes to stderr, since stdout is for the command's result, and no ``__pycache__`` is written beside user files.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from shunter import torchx_alias
from shunter._toolkit import function_call
from shunter.components.component import guarded
from shunter.errors import ComponentNotFoundException

_loaded: dict[str, tuple[tuple[int, int], ModuleType]] = {}


def load_file(path: str) -> ModuleType:
    """Import an existing file; again only if it has changed.

    Raises:
        ConfigError: it raises when it is imported.
    """
    path = os.path.realpath(path)
    stat = os.stat(path)
    stamp = (stat.st_mtime_ns, stat.st_size)
    if path not in _loaded or _loaded[path][0] != stamp:
        root, name = _module_name(path)
        with guarded(f"importing {path} failed", path), _importing_from(root), function_call.importing():
            importlib.invalidate_caches()
            sys.modules.pop(name, None)
            module = importlib.import_module(name) if name else _import_by_path(path)
        _loaded[path] = (stamp, module)
    return _loaded[path][1]


def load_module(name: str) -> ModuleType:
    """Import a module by its dotted name; the current directory counts as on the path.

    Raises:
        ComponentNotFoundException: there is no such module.
        ConfigError: it raises when it is imported.
    """
    with guarded(f"importing {name} failed", name), _importing_from(os.getcwd()), function_call.importing():
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(error.name + ".")):
                raise ComponentNotFoundException(
                    f"there is no module {error.name!r} (looked in {os.getcwd()} and on sys.path)",
                    hint="For a file, write its path: ./path/to/file.py:function.",
                ) from None
            raise


def _module_name(path: str) -> tuple[str, str]:
    """Return the directory to import from, and the dotted name of the file there; "" if it cannot have it."""
    root, filename = os.path.split(path)
    parts = [filename.removesuffix(".py")]
    while os.path.isfile(os.path.join(root, "__init__.py")) and os.path.basename(root).isidentifier():
        root, package = os.path.split(root)
        parts.insert(0, package)
    if parts[-1] == "__init__":
        parts.pop()
    is_importable = filename.endswith(".py") and all(part.isidentifier() for part in parts)
    return root, ".".join(parts) if is_importable and _is_free(parts[0], root) else ""


def _is_free(name: str, root: str) -> bool:
    """Tell whether no module from elsewhere has a name."""
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None) if loaded else PathFinder.find_spec(name)
    if name in sys.stdlib_module_names or spec is None or spec.origin is None:
        return name not in sys.stdlib_module_names and loaded is None
    files = (os.path.join(root, name, "__init__.py"), os.path.join(root, f"{name}.py"))
    return os.path.realpath(spec.origin) in files


def _import_by_path(path: str) -> ModuleType:
    """Import a file under a name that no other module has; nothing else can import what it defines."""
    name = f"component_{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _importing_from(directory: str) -> Iterator[None]:
    """Put a directory first on ``sys.path`` for an import.

    It stays on the path for later imports, but last: a user's ``types.py`` must not shadow modules that we
    import late.
    """
    torchx_alias.install()  # which the code was written for, maybe
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    was_present = directory in sys.path
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        if directory in sys.path:
            sys.path.remove(directory)
        if not was_present:
            sys.path.append(directory)
