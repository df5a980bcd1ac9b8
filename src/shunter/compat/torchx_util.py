"""TorchX's small helpers (``torchx.util``), under their names."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata as metadata
import inspect
import os
import re
import shlex
import time
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import shunter
from shunter.errors import OptionParseError
from shunter.plugins import entry_points
from shunter.specs.conversion import from_text
from shunter.specs.pairs import parse_dict

T = TypeVar("T")
#: Keys and results of `shunter.tracker.results`.
KeyType = int | str
ResultType = int | float | str
COMPONENTS_DIR = Path("torchx/components")
_PRIMITIVES = (int, float, str, bool)


# ---- torchx.util.types


def none_throws(optional: T | None, message: str = "Unexpected `None`") -> T:
    """Return a value that must not be None.

    Raises:
        AssertionError: it is None.
    """
    if optional is None:
        raise AssertionError(message)
    return optional


def is_primitive(param_type: Any) -> bool:
    """Tell whether a type is int, str, float or bool."""
    return param_type in _PRIMITIVES


def is_bool(param_type: Any) -> bool:
    """Tell whether a type is bool."""
    return param_type is bool


def decode_optional(param_type: Any) -> Any:
    """Return ``T`` for ``Optional[T]``, any other type as it is."""
    args = typing.get_args(param_type)
    if typing.get_origin(param_type) not in (typing.Union, types.UnionType) or type(None) not in args:
        return param_type
    inner = [each for each in args if each is not type(None)]
    return inner[0] if len(inner) == 1 else param_type


def get_argparse_param_type(parameter: inspect.Parameter) -> Callable[[str], object]:
    """Return the type that argparse should use for a parameter: its own if that is a plain one, else str."""
    kind = _without_notes(parameter.annotation)
    return kind if is_primitive(kind) and not is_bool(kind) else str


def _without_notes(kind: Any) -> Any:
    """Return ``T`` for ``Annotated[T, ...]``."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def to_list(arg: str) -> list[str]:
    """Split ``a,b`` (or ``a;b``); empty items are left out."""
    return [item.strip() for item in re.split("[,;]", arg) if item.strip()]


def to_dict(arg: str) -> dict[str, str]:
    """Read ``k=v,k2=v2``. The last separator before a ``=`` ends a pair, so that values may be lists.

    Raises:
        ValueError: it does not parse, or a value is missing; an empty one is written ``k=''``.
    """
    pairs = parse_dict(arg)
    for key, value in pairs.items():
        if not value and f"{key}=''" not in arg and f'{key}=""' not in arg:
            raise OptionParseError(f"{arg!r} has no value for {key!r}", hint=f"An empty value: {key}=''")
    return pairs


def decode_from_string(encoded_value: str, annotation: Any) -> Any:
    """Convert a text to a type; the empty text is None.

    Raises:
        ValueError: the text does not fit, or the type cannot be written as text.
    """
    kind = decode_optional(_without_notes(annotation))
    return from_text(kind, encoded_value) if encoded_value else None


def decode(encoded_value: Any, annotation: Any) -> Any:
    """Convert a value to a type if it is a text, else return it as it is."""
    return decode_from_string(encoded_value, annotation) if isinstance(encoded_value, str) else encoded_value


# ---- torchx.util.entrypoints


def load_entry_point(group: str, name: str, default: T | None = None) -> Any:
    """Return what a distribution offers under a name of a group, else the default.

    Raises:
        KeyError: there is none, and no default.
    """
    for point in _points(group):
        if point.name == name:
            return point.load()
    if default is None:
        raise KeyError(f"no distribution offers {name!r} in the group {group!r}")
    return default


def load_group(group: str, default: Mapping[str, Any] | None = None, skip_defaults: bool = False) -> Any:
    """Return what distributions offer in a group, by name, each loaded when it is first called.

    Args:
        group: for example ``torchx.schedulers``.
        default: returned if nothing is offered.
        skip_defaults: return None rather than the default.
    """
    points = _points(group)
    if not points:
        return None if skip_defaults else default
    return {point.name: _DeferredEntry(point) for point in points}


def _points(group: str) -> list[Any]:
    kind = group.removeprefix("torchx.")
    if kind != group:
        return entry_points(kind)
    return list(metadata.entry_points(group=group).select(group=group))  # also what a test puts in its place


class _DeferredEntry:
    """Stands for a callable, or a module, that is imported when it is used."""

    def __init__(self, point: Any) -> None:
        self._point = point

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        loaded = self._point.load()
        return loaded if inspect.ismodule(loaded) else loaded(*args, **kwargs)


# ---- torchx.util.modules


def load_module(path: str) -> Any:
    """Import ``package.module``, or take ``package.module:attribute`` from it; None if it is not there."""
    name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return None
    return getattr(module, attribute, None) if attribute else module


def import_attr(name: str, attr: str, default: T) -> Any:
    """Return an attribute of a module; the default if there is no such module.

    Raises:
        AttributeError: the module has no such attribute.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return default
    return getattr(module, attr)


# ---- torchx.util.{strings,shlex,datetime,io}, torchx.deprecations


def normalize_str(data: str) -> str:
    """Return a name in lower case, of letters, digits and ``-``, with no ``-`` in front."""
    return re.sub(r"[^a-z0-9\-]", "", data.lower()).lstrip("-")


def join(args: Iterable[str]) -> str:
    """Join words to a command line for a shell."""
    return shlex.join(args)


def get_past_epoch_time(days_past: int) -> int:
    """Return the time some days ago, in milliseconds since the epoch."""
    return int((time.time() - days_past * 86_400) * 1000)


def get_abspath(relpath: str) -> Path:
    """Return the absolute path of a file that is given relative to the installed package."""
    relative = Path(relpath)
    parts = relative.parts[1:] if relative.parts[:1] == ("torchx",) else relative.parts
    return Path(os.path.dirname(shunter.__file__), *parts)


def read_conf_file(conf_file: str) -> str:
    """Return the content of a file, through the entry point ``torchx.file`` if a plugin offers one.

    Raises:
        FileNotFoundError: there is no such file.
    """
    for point in _points("torchx.file"):
        if point.name == "get_file_contents":
            return str(point.load()(conf_file))
    return Path(conf_file).read_text(encoding="utf-8")


def deprecated(replacement: str | None = None) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Mark a function as deprecated: calling it emits a warning."""

    def decorate(fn: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> T:
            instead = f", use {replacement}" if replacement else ""
            warnings.warn(f"{fn.__qualname__} is deprecated{instead}", DeprecationWarning, stacklevel=2)
            return fn(*args, **kwargs)

        return wrapper

    return decorate


def deprecated_module(old_import: str, new_import: str, stacklevel: int = 3) -> None:
    """Warn that a module has moved."""
    warnings.warn(f"{old_import} is deprecated, use {new_import}", DeprecationWarning, stacklevel=stacklevel)
