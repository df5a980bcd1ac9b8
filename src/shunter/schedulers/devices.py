"""The mounts by which a container reaches the devices that a resource asks for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from shunter.specs.mounts import DeviceMount
from shunter.specs.named_resources_aws import EFA_DEVICE, NEURON_DEVICE

#: Paths of devices without their number, by the name of the device in `Resource.devices`.
DEVICES: dict[str, str] = {EFA_DEVICE: "/dev/infiniband/uverbs", NEURON_DEVICE: "/dev/neuron"}


def get_device_mounts(devices: Mapping[str, int]) -> list[DeviceMount]:
    """Return the mounts of a resource's devices, by their number for each name.

    There is a warning for a name that is not in `DEVICES`.
    """
    mounts: list[DeviceMount] = []
    for name, count in devices.items():
        if name not in DEVICES:
            warnings.warn(f"no mounts are known for the device {name}", stacklevel=2)
            continue
        paths = [f"{DEVICES[name]}{number}" for number in range(count)]
        mounts += [DeviceMount(src_path=path, dst_path=path) for path in paths]
    return mounts
