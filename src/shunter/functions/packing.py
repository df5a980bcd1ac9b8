"""Turns calls of functions into the sealed file that travels with a job, and into texts for lists."""

from __future__ import annotations

import inspect
import os
import reprlib
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from shunter._toolkit import sealed_pickle
from shunter.errors import ConfigError
from shunter.paths import make_private_dir, state_dir, state_error
from shunter.runner.calls import FOLDER

_LONGEST_VALUE = 40
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _LONGEST_VALUE
_short.maxlevel = 2


@dataclass(frozen=True)
class Call:
    """A function and its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function's name, for people."""
        function: Any = self.function
        while hasattr(function, "func"):  # functools.partial
            function = function.func
        return getattr(function, "__name__", type(function).__name__)

    def values(self) -> dict[str, str]:
        """Return the arguments by parameter name as short texts, for lists."""
        try:
            bound = inspect.signature(self.function).bind(*self.args, **self.kwargs).arguments
        except (TypeError, ValueError):  # a builtin, or arguments that do not fit
            bound = {**{str(k): value for k, value in enumerate(self.args)}, **self.kwargs}
        return {name: value if isinstance(value, str) else _text(value) for name, value in bound.items()}


def _text(value: Any) -> str:
    try:
        text = _short.repr(value)
    except Exception:  # a class of the user's
        return f"<{type(value).__name__}>"
    return text if len(text) <= 2 * _LONGEST_VALUE else text[: 2 * _LONGEST_VALUE - 3] + "..."


def check_call(call: Call) -> None:
    """Check that the arguments fit the function's signature.

    Raises:
        ConfigError: they do not.
    """
    try:
        inspect.signature(call.function).bind(*call.args, **call.kwargs)
    except TypeError as error:
        if callable(call.function):
            raise ConfigError(
                f"cannot call {call.name}: {error}", hint=f"Its signature is {_signature(call.function)}."
            ) from None
        raise ConfigError(f"cannot submit {call.function!r}: it is not a function") from None
    except ValueError:  # a builtin without a signature
        return


def _signature(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__name__', '')}{inspect.signature(function)}"


@dataclass(frozen=True)
class PackedCalls:
    """Calls as a sealed file.

    Attributes:
        data: the file's content.
        libraries: by name, the folders of packages that reading it needs, and that a job may lack.
    """

    data: bytes
    libraries: dict[str, str]


def pack(calls: Sequence[Call], key: bytes) -> PackedCalls:
    """Pickle calls, each by itself, so that a job's replica reads only its own.

    Functions and classes of importable modules are pickled by name; those of ``__main__`` and of notebooks
    whole.

    Raises:
        ConfigError: something cannot be pickled.
    """
    pickles = [_pickled(call) for call in calls]
    places, end = [], 0
    for pickled in pickles:
        places.append((end, end + len(pickled)))
        end += len(pickled)
    has_code = any(b"cloudpickle" in pickled for pickled in pickles)
    path = [*_own_folders(), f"{FOLDER}/lib"]
    libraries = {}
    if has_code:
        library = _own_cloudpickle()
        libraries["cloudpickle"] = library
        path.append(os.path.dirname(library))
    # pickled code is read by the same version of Python only; names and data by any
    python = sealed_pickle.python_version() if has_code else ""
    header = {"python": python, "places": places, "path": path}
    return PackedCalls(sealed_pickle.seal(header, b"".join(pickles), key, "calls"), libraries)


def _pickled(call: Call) -> bytes:
    try:
        data: bytes = cloudpickle.dumps((call.function, call.args, dict(call.kwargs)), protocol=4)
    except Exception as error:
        raise ConfigError(
            f"cannot pickle the call of {call.name}: {type(error).__name__}: {error}",
            hint="Give it plain data, or what it needs to open files, connections and locks itself.",
        ) from error
    return data


def _own_cloudpickle() -> str:
    """Return a folder that holds cloudpickle and nothing else, for jobs whose Python lacks it.

    Raises:
        StateStoreError: it cannot be made.
    """
    folder = os.path.join(state_dir(), "libraries", f"cloudpickle-{cloudpickle.__version__}", "cloudpickle")
    if os.path.isdir(folder):
        return folder
    partial = f"{folder}.{os.getpid()}.new"
    try:
        make_private_dir(os.path.dirname(folder))
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(os.path.dirname(cloudpickle.__file__), partial, ignore=ignored)
        os.rename(partial, folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not os.path.isdir(folder):  # another process was quicker
            raise state_error("keep cloudpickle in", folder, error) from error
    return folder


def _own_folders() -> list[str]:
    """Return the user's own folders of ``sys.path``.

    Those below the current one come first by their relative paths, which they have in a workspace too.
    """
    installed = tuple(
        os.path.realpath(path) for path in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}
    )
    below, folders = [], []
    for entry in sys.path:
        path = os.path.realpath(entry or ".")
        if not os.path.isdir(path) or path.startswith(installed) or path.endswith("-packages"):
            continue
        relative = os.path.relpath(path)
        if not relative.startswith(os.pardir):
            below.append(relative)
        folders.append(path)
    return [*below, *folders]
