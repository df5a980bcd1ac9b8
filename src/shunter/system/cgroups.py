"""What a container of this machine uses, by its cgroup (versions 1 and 2) and its first process.

The same files that `docker stats` reads. There are none on other systems, nor for containers of a daemon of
another machine.
"""

from __future__ import annotations

import os
import re

from shunter.system.process_table import ProcessUsage

CGROUPS = "/sys/fs/cgroup"


def container_usage(pid: int, container_id: str) -> ProcessUsage | None:
    """Return what a container uses; None if it does not run here.

    Args:
        pid: its first process, as its daemon numbers it.
        container_id: its full id, which distinguishes it from another machine's process with this number.
    """
    places = _cgroups(pid, container_id)
    if not places:
        return None
    read, written = _storage(places)
    return ProcessUsage(_cpu_seconds(places), _memory(places), read, written)


def network_bytes_of(pid: int) -> tuple[int, int]:
    """Return how many bytes a process's network has received and sent; zeros if we may not know."""
    received = sent = 0
    for line in _read(f"/proc/{pid}/net/dev").splitlines()[2:]:
        name, _, counters = line.partition(":")
        fields = counters.split()
        if name.strip() != "lo" and len(fields) > 8:
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def _cgroups(pid: int, container_id: str) -> dict[str, str]:
    """Return the directories of a container's cgroups by controller, "" for version 2."""
    found = {}
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if container_id and container_id in path:
            for name in controllers.split(","):
                found[name] = os.path.join(CGROUPS, controllers, path.lstrip("/"))
    return found


def _cpu_seconds(places: dict[str, str]) -> float:
    if "cpuacct" in places:
        return int(_read(places["cpuacct"], "cpuacct.usage") or 0) / 1e9
    return _field(places.get(""), "cpu.stat", "usage_usec") / 1e6


def _memory(places: dict[str, str]) -> int:
    """Return the memory in bytes, without the pages of files that the kernel would reclaim first."""
    if "memory" in places:
        place, file, reclaimed = places["memory"], "memory.usage_in_bytes", "total_inactive_file"
    else:
        place, file, reclaimed = places.get("", ""), "memory.current", "inactive_file"
    return max(0, int(_read(place, file) or 0) - _field(place, "memory.stat", reclaimed))


def _storage(places: dict[str, str]) -> tuple[int, int]:
    """Return how many bytes were read and written."""
    if "blkio" in places:
        text = _read(places["blkio"], "blkio.throttle.io_service_bytes")
        return _sum(r"\bRead (\d+)", text), _sum(r"\bWrite (\d+)", text)
    text = _read(places.get("", ""), "io.stat")
    return _sum(r"\brbytes=(\d+)", text), _sum(r"\bwbytes=(\d+)", text)


def _field(place: str | None, file: str, name: str) -> int:
    found = re.search(rf"^{name} (\d+)", _read(place or "", file), re.MULTILINE)
    return int(found[1]) if found else 0


def _sum(pattern: str, text: str) -> int:
    return sum(map(int, re.findall(pattern, text)))


def _read(*path: str) -> str:
    try:
        with open(os.path.join(*path), encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
