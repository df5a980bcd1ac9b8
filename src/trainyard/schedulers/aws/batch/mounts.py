"""Mounts and devices of a role, as Batch's containers take them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from trainyard.errors import ConfigError, did_you_mean
from trainyard.specs.mounts import BindMount, DeviceMount, Mount, VolumeMount
from trainyard.specs.named_resources_aws import EFA_DEVICE, NEURON_DEVICE

_PERMISSIONS = {"r": "READ", "w": "WRITE", "m": "MKNOD"}
_DEVICE_PATHS = {EFA_DEVICE: "/dev/infiniband/uverbs{}", NEURON_DEVICE: "/dev/neuron{}"}
_EFS = re.compile(r"(?P<id>fs-[0-9a-zA-Z-]+)(?:@(?P<point>fsap-[0-9a-zA-Z-]+))?(?::(?P<root>/.*))?")


def device_mounts(devices: dict[str, int]) -> list[DeviceMount]:
    """Return the device files of named devices, such as one EFA interface: ``/dev/infiniband/uverbs0``.

    Raises:
        ConfigError: there is no such kind of device.
    """
    mounts = []
    for name, count in devices.items():
        if name not in _DEVICE_PATHS:
            raise ConfigError(
                f"AWS Batch has no device {name!r}",
                hint=f"{did_you_mean(name, _DEVICE_PATHS)} Others can be mounted: type=device,src=/dev/...",
            )
        paths = [_DEVICE_PATHS[name].format(index) for index in range(count)]
        mounts += [DeviceMount(path, path) for path in paths]
    return mounts


def container_mounts(mounts: Iterable[Mount], has_job_role: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Return ``volumes``, ``mountPoints`` and ``devices``; those that are empty are left out.

    Args:
        mounts: binds of host directories, EFS file systems (``fs-ID``, ``fs-ID:/DIRECTORY`` or
            ``fs-ID@fsap-ID``, an access point) and devices.
        has_job_role: whether the job has a role, by which EFS can then recognise it.

    Raises:
        ConfigError: a volume is no EFS file system, or two mounts go to one place.
    """
    found: dict[str, list[dict[str, Any]]] = {"volumes": [], "mountPoints": [], "devices": []}
    places: set[str] = set()
    for index, mount in enumerate(mounts):
        if mount.dst_path in places:
            raise ConfigError(f"two mounts go to {mount.dst_path}")
        places.add(mount.dst_path)
        if isinstance(mount, DeviceMount):
            found["devices"].append(_device(mount))
            continue
        name = f"mount_{index}"
        volume = _host(mount) if isinstance(mount, BindMount) else _efs(mount, has_job_role)
        found["volumes"].append({"name": name, **volume})
        point = {"containerPath": mount.dst_path, "readOnly": mount.read_only, "sourceVolume": name}
        found["mountPoints"].append(point)
    return {key: items for key, items in found.items() if items}


def _device(mount: DeviceMount) -> dict[str, Any]:
    permissions = [_PERMISSIONS[letter] for letter in mount.permissions]
    return {"hostPath": mount.src_path, "containerPath": mount.dst_path, "permissions": permissions}


def _host(mount: BindMount) -> dict[str, Any]:
    return {"host": {"sourcePath": mount.src_path}}


def _efs(mount: VolumeMount, has_job_role: bool) -> dict[str, Any]:
    parts = _EFS.fullmatch(mount.src)
    if parts is None:
        raise ConfigError(
            f"the volume {mount.src!r} is no EFS file system",
            hint="Write fs-ID, fs-ID:/DIRECTORY or fs-ID@fsap-ID; a directory of the host is type=bind.",
        )
    volume: dict[str, Any] = {"fileSystemId": parts["id"]}
    if parts["point"]:
        if parts["root"] not in (None, "/"):
            raise ConfigError(f"the volume {mount.src!r}: the access point gives the directory already")
        # what AWS asks for with an access point
        volume["transitEncryption"] = "ENABLED"
        iam = "ENABLED" if has_job_role else "DISABLED"
        volume["authorizationConfig"] = {"accessPointId": parts["point"], "iam": iam}
    elif parts["root"]:
        volume["rootDirectory"] = parts["root"]
    return {"efsVolumeConfiguration": volume}
