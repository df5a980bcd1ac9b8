"""Warnings of what is deprecated (``torchx.deprecations``)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


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
