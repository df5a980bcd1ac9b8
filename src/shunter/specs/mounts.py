"""Mounts: host directories, volumes and devices that a job can access."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from shunter.errors import MountParseError, did_you_mean


class MountType(str, Enum):
    """Kind of a mount."""

    BIND = "bind"
    VOLUME = "volume"
    DEVICE = "device"


@dataclass
class BindMount:
    """A host path, mounted into the container."""

    src_path: str
    dst_path: str
    read_only: bool = False


@dataclass
class VolumeMount:
    """A persistent volume of the scheduler (a Docker volume, an EFS file system, a claim)."""

    src: str
    dst_path: str
    read_only: bool = False


@dataclass
class DeviceMount:
    """A host device. ``permissions`` are any of r(ead), w(rite), m(knod)."""

    src_path: str
    dst_path: str
    permissions: str = "rwm"

    def __post_init__(self) -> None:
        wrong = set(self.permissions) - set("rwm")
        if wrong:
            raise MountParseError(
                f"device permissions {self.permissions!r}: {''.join(sorted(wrong))!r} is not one of r, w, m",
                hint="Example: type=device,src=/dev/infiniband/uverbs0,perm=rwm",
            )


Mount = BindMount | VolumeMount | DeviceMount

_EXAMPLE = "Example: type=bind,src=/data,dst=/mnt/data,readonly"
_ALIASES = {
    "type": "type",
    "destination": "dst",
    "dst": "dst",
    "target": "dst",
    "source": "src",
    "src": "src",
    "read_only": "readonly",
    "readonly": "readonly",
    "permissions": "perm",
    "perm": "perm",
}


def parse_mounts(opts: Sequence[str]) -> list[Mount]:
    """Parse a flat list of ``key=value`` items, each ``type=`` of which begins a mount.

    Args:
        opts: items such as ``["type=bind", "src=/data", "dst=/mnt", "readonly"]``. Keys are ``type``
            (bind, volume, device), ``src``/``source``, ``dst``/``target``/``destination``,
            ``readonly``/``read_only`` (a flag, or ``=true``/``=false``) and ``perm`` (devices).

    Raises:
        MountParseError: the text does not parse; the message holds the item that is wrong.
    """
    return [_make_mount(fields) for fields in _group_fields(opts)]


def _group_fields(opts: Sequence[str]) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for position, item in enumerate(opts, start=1):
        key, separator, value = item.partition("=")
        name = _ALIASES.get(key.strip())
        where = f"mounts {','.join(opts)!r}, item {position} ({item!r})"
        if name is None:
            raise MountParseError(
                f"{where}: unknown key {key!r}", hint=f"{did_you_mean(key, _ALIASES)} {_EXAMPLE}"
            )
        if name == "type":
            if fields:
                yield fields
            fields = {}
        elif not fields:
            raise MountParseError(f"{where}: a mount must begin with type=", hint=_EXAMPLE)
        if name in fields:
            raise MountParseError(f"{where}: {name} is given twice", hint=_EXAMPLE)
        if not value and name != "readonly":
            raise MountParseError(f"{where}: {key} has no value", hint=_EXAMPLE)
        fields[name] = value.strip() if separator else "true"
    if fields:
        yield fields


def _make_mount(fields: dict[str, str]) -> Mount:
    text = ",".join(f"{key}={value}" for key, value in fields.items())
    try:
        kind = MountType(fields["type"])
    except ValueError:
        kinds = [kind.value for kind in MountType]
        raise MountParseError(
            f"mount {text!r}: there is no mount type {fields['type']!r}",
            hint=did_you_mean(fields["type"], kinds),
        ) from None
    if kind is MountType.DEVICE:
        _require(fields, text, {"src"}, {"dst", "perm"})
        return DeviceMount(fields["src"], fields.get("dst", fields["src"]), fields.get("perm", "rwm"))
    _require(fields, text, {"src", "dst"}, {"readonly"})
    read_only = _flag(fields.get("readonly", "false"), text)
    if kind is MountType.BIND:
        return BindMount(os.path.expanduser(fields["src"]), fields["dst"], read_only)
    return VolumeMount(fields["src"], fields["dst"], read_only)


def _require(fields: dict[str, str], text: str, needed: set[str], allowed: set[str]) -> None:
    for name in sorted(needed - fields.keys()):
        raise MountParseError(f"mount {text!r}: {name} is missing", hint=_EXAMPLE)
    for name in sorted(fields.keys() - needed - allowed - {"type"}):
        raise MountParseError(
            f"mount {text!r}: {name} does not apply to a mount of type {fields['type']}", hint=_EXAMPLE
        )


def _flag(value: str, text: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise MountParseError(f"mount {text!r}: readonly={value} must be true or false", hint=_EXAMPLE)
    return value.lower() == "true"
