"""The defaults of a dataclass's fields, be they values or made by a factory."""

from __future__ import annotations

from dataclasses import MISSING, Field
from typing import Any


def has_default(field: Field[Any]) -> bool:
    """Tell whether a field has a default or makes one."""
    return field.default is not MISSING or field.default_factory is not MISSING


def default_of(field: Field[Any]) -> Any:
    """Return the default of a field, made if there is a factory; None if it has none."""
    if field.default is not MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not MISSING else None
