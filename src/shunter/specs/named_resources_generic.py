"""Named resources that mean the same on every scheduler."""

from __future__ import annotations

from functools import partial

from shunter.specs.resources import Resource, ResourceFactory

GiB = 1024

_SIZES: dict[str, tuple[int, int, int]] = {
    "gpu.small": (8, 1, 32 * GiB),
    "gpu.medium": (16, 2, 64 * GiB),
    "gpu.large": (32, 4, 128 * GiB),
    "gpu.xlarge": (64, 8, 256 * GiB),
    "cpu.nano": (1, 0, 512),
    "cpu.micro": (1, 0, 1 * GiB),
    "cpu.small": (1, 0, 2 * GiB),
    "cpu.medium": (2, 0, 4 * GiB),
    "cpu.large": (2, 0, 8 * GiB),
    "cpu.xlarge": (8, 0, 32 * GiB),
}

NAMED_RESOURCES: dict[str, ResourceFactory] = {
    name: partial(Resource, cpu, gpu, memory) for name, (cpu, gpu, memory) in _SIZES.items()
}
