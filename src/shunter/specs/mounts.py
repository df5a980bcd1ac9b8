"""Mounts: host directories, volumes and devices that a job can access."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
#: By type of a mount, the fields that it needs, and those that it may have.
_FIELDS: dict[str, tuple[set[str], set[str]]] = {
    MountType.BIND.value: ({"src", "dst"}, {"readonly"}),
    MountType.VOLUME.value: ({"src", "dst"}, {"readonly"}),
    MountType.DEVICE.value: ({"src"}, {"dst", "perm"}),
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
    mounts: list[dict[str, str]] = []
    for position, item in enumerate(opts, start=1):
        key, separator, value = item.partition("=")
        name = _ALIASES.get(key.strip())
        if name == "type":
            mounts.append({})
        problem, hint = "", _EXAMPLE
        if name is None:
            problem = f"unknown key {key!r}"
            hint = _as_docker_has_it(opts) or f"{did_you_mean(key, _ALIASES)} {_EXAMPLE}"
        elif not mounts:
            problem = "a mount must begin with type="
        elif name in mounts[-1]:
            problem = f"{name} is given twice"
        elif not value and name != "readonly":
            problem = f"{key} has no value"
        else:
            mounts[-1][name] = value.strip() if separator else "true"
        if problem:
            where = f"mounts {','.join(opts)!r}, item {position} ({item!r})"
            raise MountParseError(f"{where}: {problem}", hint=hint)
    return [_make_mount(fields) for fields in mounts]


def _as_docker_has_it(opts: Sequence[str]) -> str:
    """Return the hint about ``SRC:DST`` or ``SRC:DST:ro``; "" if it is not that."""
    source, *rest = ",".join(opts).split(":")
    if len(rest) not in (1, 2) or not rest[0].startswith("/"):
        return ""
    read_only = ",readonly" if rest[1:] == ["ro"] else ""
    return f"For that: type=bind,src={source},dst={rest[0]}{read_only}"


def _make_mount(fields: dict[str, str]) -> Mount:
    text = ",".join(f"{key}={value}" for key, value in fields.items())
    kind = fields.pop("type")
    if kind not in _FIELDS:
        raise MountParseError(
            f"mount {text!r}: there is no mount type {kind!r}", hint=did_you_mean(kind, _FIELDS)
        )
    needed, optional = _FIELDS[kind]
    read_only = fields.get("readonly", "false").lower()
    problems = [f"{name} is missing" for name in sorted(needed - fields.keys())]
    strays = sorted(fields.keys() - needed - optional)
    problems += [f"{name} does not apply to a mount of type {kind}" for name in strays]
    if read_only not in ("true", "false"):
        problems.append(f"readonly={fields['readonly']} must be true or false")
    if problems:
        raise MountParseError(f"mount {text!r}: {'; '.join(problems)}", hint=_EXAMPLE)
    if kind == MountType.DEVICE:
        return DeviceMount(fields["src"], fields.get("dst", fields["src"]), fields.get("perm", "rwm"))
    if kind == MountType.BIND:
        return BindMount(os.path.expanduser(fields["src"]), fields["dst"], read_only == "true")
    return VolumeMount(fields["src"], fields["dst"], read_only == "true")
