"""Modules and their attributes by name (``torchx.util.modules``)."""

from __future__ import annotations

import importlib
from typing import Any


def load_module(path: str) -> Any:
    """Import ``package.module``, or take ``package.module:attribute`` from it; None if it is not there."""
    name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return None
    return getattr(module, attribute, None) if attribute else module
