"""NVIDIA GPUs: how busy they are and how much of their memory is used, by the driver's own library (NVML).

It is loaded only where the driver is. The functions are those of NVIDIA's "NVML API Reference".
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple

_DRIVER = "/dev/nvidiactl"
_LIBRARY = "libnvidia-ml.so.1"
_UUID_SIZE = 96


class GpuUsage(NamedTuple):
    """A GPU: its identifier, how busy it was lately in percent, how many bytes of its memory are used."""

    uuid: str
    busy_percent: float
    memory: int


class Gpus:
    """The GPUs of this machine, in the order of their numbers; none where NVML cannot be used."""

    def __init__(self) -> None:
        self._library: Any = None
        self._handles: list[Any] = []
        if os.path.exists(_DRIVER):
            self._load()

    def _load(self) -> None:
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError:
            return
        count = ctypes.c_uint()
        if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if not library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                self._handles.append(handle)
        self._library = library

    def usage(self) -> list[GpuUsage]:
        """Return what all GPUs are used for now."""
        if not self._handles:
            return []

        class Utilization(ctypes.Structure):
            _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]

        class Memory(ctypes.Structure):
            _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

        found = []
        for handle in self._handles:
            busy, memory, uuid = Utilization(), Memory(), ctypes.create_string_buffer(_UUID_SIZE)
            self._library.nvmlDeviceGetUUID(handle, uuid, _UUID_SIZE)
            is_busy_known = not self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy))
            self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            percent = float(busy.gpu) if is_busy_known else float("nan")  # unknown for a MIG instance
            found.append(GpuUsage(uuid.value.decode("ascii", "replace"), percent, int(memory.used)))
        return found


def used(gpus: list[GpuUsage]) -> tuple[float, int]:
    """Return how busy GPUs are on average in percent, nan without any, and the bytes of memory in use."""
    busy = sum(gpu.busy_percent for gpu in gpus) / len(gpus) if gpus else float("nan")
    return busy, sum(gpu.memory for gpu in gpus)


def visible(gpus: list[GpuUsage], variable: str | None) -> list[GpuUsage]:
    """Return the GPUs that a program sees with this ``CUDA_VISIBLE_DEVICES``: all without the variable."""
    if variable is None:
        return gpus
    found = []
    for word in filter(None, map(str.strip, variable.split(","))):
        if word.isdecimal():
            found += gpus[int(word) : int(word) + 1]
        else:
            found += [gpu for gpu in gpus if gpu.uuid.startswith(word)]
    return found
