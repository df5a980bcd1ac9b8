"""Specs to JSON and back, without loss."""

from __future__ import annotations

import enum
import math
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from shunter.errors import ConfigError
from shunter.specs.app import AppDef, Role
from shunter.specs.conversion import ConversionError, from_value
from shunter.specs.mounts import BindMount, DeviceMount, Mount, MountType, VolumeMount
from shunter.specs.resources import Resource
from shunter.specs.workspace import Workspace

T = TypeVar("T", AppDef, Role, Resource, BindMount, VolumeMount, DeviceMount)

_MOUNT_CLASSES: dict[str, type[Any]] = {
    MountType.BIND.value: BindMount,
    MountType.VOLUME.value: VolumeMount,
    MountType.DEVICE.value: DeviceMount,
}
_MOUNT_TYPES = {cls: kind for kind, cls in _MOUNT_CLASSES.items()}


def to_json(spec: Any) -> Any:
    """Return a spec as JSON values. A role's overrides are resolved, since functions have no JSON.

    Raises:
        ConfigError: a value in it (in ``metadata``, say) cannot be written as JSON.
    """
    return _encode(spec, type(spec).__name__)


def _encode(value: Any, path: str) -> Any:
    if isinstance(value, Role):
        for name in list(value.overrides):
            getattr(value, name)
    if is_dataclass(value) and not isinstance(value, type):
        has_workspace = getattr(value, "workspace", None) is not None
        data = {
            field.name: _encode(getattr(value, field.name), f"{path}.{field.name}")
            for field in fields(value)
            if field.name != "overrides" and (field.name != "workspace" or has_workspace)
        }
        kind = _MOUNT_TYPES.get(type(value))
        return data if kind is None else {"type": kind, **data}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Workspace):
        return str(value)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _encode(item, f"{path}[{key}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    what = value if isinstance(value, float) else f"of type {type(value).__name__}"
    raise ConfigError(
        f"{path} cannot be written as JSON: it is {what}",
        hint="Use only strings, finite numbers, booleans, lists, and dicts with strings as keys.",
    )


def from_json(cls: type[T], data: Any) -> T:
    """Rebuild a spec from what `to_json` returned.

    Raises:
        ConfigError: the data does not fit; the message says where.
    """
    try:
        spec: T = from_value(cls, _with_mounts(cls, data))
    except ConversionError as error:
        raise ConfigError(f"this is not a valid {cls.__name__}: {error}") from None
    return spec


def _with_mounts(cls: type[Any], data: Any) -> Any:
    """Return the data of a spec with its mounts made, since their class is in their data."""
    if not isinstance(data, dict):
        raise ConversionError(f"{cls.__name__} is a JSON object, not {type(data).__name__}")
    fields = dict(data)
    if cls is AppDef and isinstance(data.get("roles"), list):
        fields["roles"] = [_with_mounts(Role, role) for role in data["roles"]]
    elif cls is Role and isinstance(data.get("mounts"), list):
        fields["mounts"] = [_made_mount(mount) for mount in data["mounts"]]
    elif cls in _MOUNT_TYPES:
        fields.pop("type", None)
    return fields


def _made_mount(data: Any) -> Mount:
    kind = data.get("type") if isinstance(data, dict) else None
    cls = _MOUNT_CLASSES.get(str(kind))
    if cls is None:
        raise ConversionError(f"{data!r} is not a mount: its type must be one of {', '.join(_MOUNT_CLASSES)}")
    mount: Mount = from_value(cls, _with_mounts(cls, data))
    return mount
