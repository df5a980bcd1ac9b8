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
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from stat import S_ISREG
from types import ModuleType

from shunter import torchx_alias
from shunter.errors import ComponentNotFoundException, ConfigError, ShunterError

_loaded: dict[str, tuple[tuple[int, int], ModuleType]] = {}


@contextmanager
def guarded(attempt: str, path: str) -> Iterator[None]:
    """Run user code: its output goes to stderr, its exceptions become errors that say where.

    Raises:
        ConfigError: the code raised anything but a `ShunterError`.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except ShunterError:
        raise
    except (Exception, SystemExit) as error:
        where = _line_in(error, path)
        raise ConfigError(f"{attempt}: {type(error).__name__}: {error}{where}") from error


def _line_in(error: BaseException, path: str) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    lines = [
        line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == path
    ]
    return f" ({path}:{lines[-1]})" if lines else f" ({path})"


def load_file(path: str) -> ModuleType:
    """Import a file; again only if it has changed.

    Raises:
        ComponentNotFoundException: there is no such file.
        ConfigError: it cannot be read or raises when it is imported.
    """
    path = os.path.realpath(path)
    try:
        stat = os.stat(path)
    except OSError as error:
        raise ComponentNotFoundException(f"cannot read {path}: {error.strerror}") from None
    if not S_ISREG(stat.st_mode):
        raise ComponentNotFoundException(f"cannot read {path}: it is not a regular file")
    stamp = (stat.st_mtime_ns, stat.st_size)
    if path in _loaded and _loaded[path][0] == stamp:
        return _loaded[path][1]
    root, name = _module_name(path)
    with guarded(f"importing {path} failed", path), _importing_from(root):
        module = _import(path, name)
    _loaded[path] = (stamp, module)
    return module


def load_module(name: str) -> ModuleType:
    """Import a module by its dotted name; the current directory counts as on the path.

    Raises:
        ComponentNotFoundException: there is no such module.
        ConfigError: it raises when it is imported.
    """
    with guarded(f"importing {name} failed", name), _importing_from(os.getcwd()):
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
    """Return the directory to import from, and the dotted name that the file has there."""
    root, filename = os.path.split(path)
    parts = [filename.removesuffix(".py")]
    while os.path.isfile(os.path.join(root, "__init__.py")) and os.path.basename(root).isidentifier():
        root, package = os.path.split(root)
        parts.insert(0, package)
    if parts[-1] == "__init__":
        parts.pop()
    name = ".".join(parts)
    if all(part.isidentifier() for part in parts) and _is_free(name, path, root):
        return root, name
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    stem = "".join(char if char.isalnum() else "_" for char in parts[-1])
    return root, f"component_{stem}_{digest}"


def _is_free(name: str, path: str, root: str) -> bool:
    """Tell whether the name does not collide with another module."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return False
    if name in sys.modules:
        return _file_of(sys.modules[name]) == path
    if top in sys.modules:
        file = _file_of(sys.modules[top])
    else:
        spec = PathFinder.find_spec(top)
        file = os.path.realpath(spec.origin) if spec and spec.origin else ""
    return file in ("", os.path.join(root, top, "__init__.py"), os.path.join(root, f"{top}.py"))


def _file_of(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return os.path.realpath(file) if file else "built in"


def _import(path: str, name: str) -> ModuleType:
    importlib.invalidate_caches()
    parent, _, leaf = name.rpartition(".")
    package = importlib.import_module(parent) if parent else None
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    if package is not None:
        setattr(package, leaf, module)  # as an import statement does
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
