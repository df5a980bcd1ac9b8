"""Calling functions with the arguments that they take."""

from __future__ import annotations

import collections
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

#: What Python's ``inspect`` had before 3.11.
ArgSpec = collections.namedtuple("ArgSpec", ("args", "varargs", "keywords", "defaults"))


def matching_args(fn: Callable[..., Any], dictionary: Mapping[str, Any]) -> dict[str, Any]:
    """Those entries of a dictionary that a function takes as arguments; all, if it takes ``**kwargs``."""
    spec = getargspec(fn)
    if spec.keywords:
        return dict(dictionary)
    return {name: value for name, value in dictionary.items() if name in spec.args}


def getargspec(fn: Callable[..., Any]) -> ArgSpec:
    """The names and defaults of a function's arguments."""
    spec = inspect.getfullargspec(fn)
    return ArgSpec(spec.args, spec.varargs, spec.varkw, spec.defaults)


def error_wrapper(fn: Callable[..., Any], error_class: type[Exception]) -> Callable[..., Any]:
    """A function that raises ``error_class`` in place of any exception of ``fn``."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            raise error_class(error) from error

    return wrapped
