"""What one replica needs: cpus, gpus, memory and devices."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from shunter.limits import MOST_MEMORY_MB

#: Keys of `Resource.tags`: the name that it was registered under, and whether it is a share of that.
RESOURCE_NAME = "torchx/named_resources.name"
IS_FRACTIONAL = "torchx/named_resources.is_fractional"
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([MGT])i?B?", re.IGNORECASE)
_MEBIBYTES = {"M": 1, "G": 1024, "T": 1024 * 1024}


@dataclass
class Resource:
    """Needs of one replica.

    Args:
        cpu: number of logical cpus; -1 leaves it open.
        gpu: number of gpus; -1 leaves it open.
        memMB: memory in MiB; -1 leaves it open.
        capabilities: scheduler-specific facts, such as the instance type.
        devices: named devices and how many of each, such as ``{"vpc.amazonaws.com/efa": 4}``.
        tags: free notes that no scheduler reads.
    """

    cpu: int
    gpu: int
    memMB: int
    capabilities: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    tags: dict[str, object] = field(default_factory=dict)

    def get_resource_name(self) -> str | None:
        """Return the name under which a plugin registered it; None if it is not one of those."""
        name = self.tags.get(RESOURCE_NAME)
        return None if name is None else str(name)

    def is_fractional(self) -> bool:
        """Tell whether a plugin registered it as a share of another one."""
        return bool(self.tags.get(IS_FRACTIONAL, False))

    @staticmethod
    def copy(original: Resource, **capabilities: Any) -> Resource:
        """Return a copy with these capabilities added."""
        return replace(
            original,
            capabilities={**original.capabilities, **capabilities},
            devices=dict(original.devices),
            tags=dict(original.tags),
        )


NULL_RESOURCE = Resource(cpu=-1, gpu=-1, memMB=-1)

ResourceFactory = Callable[[], Resource]


def parse_memory(text: str) -> int:
    """Return MiB from ``16G``, ``512M``, ``16GiB``, ``1.5T``; a unit is needed.

    Raises:
        ValueError: the text is not such a size, or it is zero or larger than a petabyte.
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:30]!r} is not a size such as 64G")
    size = int(float(match[1]) * _MEBIBYTES[match[2].upper()])
    if not 0 < size <= MOST_MEMORY_MB:
        raise ValueError(f"{text} must be greater than 0 and at most {MOST_MEMORY_MB:,} MB")
    return size
