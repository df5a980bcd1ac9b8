"""Values made of another library's classes, rebuilt from ours, and the other way round.

Classes are matched by name, and fields by name: an ``AppDef`` of TorchX has the shape of ours, though it is
another class.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from shunter.specs import app as app_specs
from shunter.specs import mounts, resources


def translated(value: Any, classes: Mapping[str, type]) -> Any:
    """Return a value in which every object is rebuilt with the class of the same name, if there is one.

    Objects of these classes, or of subclasses, stay as they are. Fields that a class lacks are left out, and
    a member that an enumeration lacks becomes its UNKNOWN.

    Args:
        value: an object, or lists and dicts of such.
        classes: the classes to use, by their names.
    """
    if isinstance(value, (str, int, float, type(None))) and not isinstance(value, Enum):
        return value
    target = next((classes[cls.__name__] for cls in type(value).__mro__ if cls.__name__ in classes), None)
    if target is not None:
        return value if isinstance(value, target) else _rebuilt(value, target, classes)
    kind = type(value)
    if kind is list or kind is tuple:
        return kind([translated(item, classes) for item in value])
    if kind is dict:
        return {key: translated(item, classes) for key, item in value.items()}
    return value


def _rebuilt(value: Any, target: Any, classes: Mapping[str, type]) -> Any:
    if isinstance(value, Enum):
        return target.__members__.get(value.name) or target["UNKNOWN"]
    values = {
        field.name: translated(getattr(value, field.name), classes)
        for field in fields(target)
        # what overrides stand for is in the values already
        if field.init and field.name != "overrides" and hasattr(value, field.name)
    }
    return target(**values)


def classes_of(*modules: Any) -> dict[str, type]:
    """Return the dataclasses and enumerations that modules offer, by name."""
    return {
        name: value
        for module in modules
        for name, value in inspect.getmembers(module, inspect.isclass)
        if name == value.__name__ and (is_dataclass(value) or issubclass(value, Enum))
    }


def our_app(app: Any) -> Any:
    """Return a job of our classes, made of one of other classes; anything else is returned as it is.

    Roles keep their ``pre_proc``.
    """
    is_app = any(cls.__name__ == "AppDef" for cls in type(app).__mro__)
    if not is_app or not isinstance(getattr(app, "roles", None), (list, tuple)):
        return app
    roles = translated(list(app.roles), classes_of(app_specs, mounts, resources))
    for role, theirs in zip(roles, app.roles, strict=True):
        below = [cls for cls in type(theirs).__mro__[:-1] if cls.__name__ != "Role"]
        if role is not theirs and any("pre_proc" in vars(cls) for cls in below):
            role.pre_proc = theirs.pre_proc
    return app_specs.AppDef(app.name, roles, dict(app.metadata or {}))
