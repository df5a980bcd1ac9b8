"""A call of an importable function with arguments in JSON: ``shunter run module:function --lr 0.1``."""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import typing
from pathlib import PurePath
from typing import Any, Callable

from .function_call import Call, CallError, advice, importing


def read(name: str, text: str) -> Call:
    """Return a call, its values as the function's annotations want them.

    Args:
        name: the function, ``module:function``.
        text: its arguments as JSON, ``{"args": [], "kwargs": {}}``.

    Raises:
        CallError: there is no such function.
    """
    function, arguments = _imported(name), json.loads(text)
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # names that only a type checker knows
        hints = {}
    kwargs = {key: _as_annotated(hints.get(key), value) for key, value in arguments["kwargs"].items()}
    names = list(inspect.signature(function).parameters)
    positional = enumerate(arguments["args"])
    args = (_as_annotated(hints.get(names[min(k, len(names) - 1)]), value) for k, value in positional)
    return function, tuple(args), kwargs


def _as_annotated(annotation: Any, value: Any) -> Any:
    """Return a path or a member of an enum, where the annotation says so; other values as they are."""
    if isinstance(annotation, type) and isinstance(value, str):
        if issubclass(annotation, enum.Enum):
            return annotation[value]
        if issubclass(annotation, PurePath):
            return annotation(value)
    return value


def _imported(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        with importing():
            function: Any = importlib.import_module(module)
        for part in attribute.split("."):
            function = getattr(function, part)
    except ModuleNotFoundError as error:
        raise CallError(
            f"cannot import {name}: there is no module {error.name}. {advice(error.name)}"
        ) from error
    except AttributeError:
        raise CallError(f"cannot call {name}: {module} has no {attribute!r}") from None
    result: Callable[..., Any] = function
    return result
