"""Calling functions with the arguments that they take."""

from __future__ import annotations

import functools
import inspect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def matching_args(fn: Callable[..., Any], dictionary: Mapping[str, Any]) -> dict[str, Any]:
    """Those entries of a dictionary that a function takes as arguments; all, if it takes ``**kwargs``."""
    spec = getargspec(fn)
    if spec.varkw:
        return dict(dictionary)
    return {name: value for name, value in dictionary.items() if name in spec.args}


def getargspec(fn: Callable[..., Any]) -> inspect.FullArgSpec:
    """The names and defaults of a function's arguments."""
    return inspect.getfullargspec(fn)


def error_wrapper(fn: Callable[..., Any], error_class: type[Exception]) -> Callable[..., Any]:
    """A function that raises ``error_class`` in place of any exception of ``fn``."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            raise error_class(error) from error

    return wrapped
