"""What containers of this machine use: CPU, memory and storage by their cgroup, network by their process.

It is read from the kernel, as `docker stats` does, once the daemon has said which process is a container's
first. Containers of another machine's daemon have no process here, and no samples.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Sequence

from shunter.schedulers.exec.usage_file import UsageRecord
from shunter.schedulers.supervisor.container_replica import ContainerReplica, inspect
from shunter.schedulers.supervisor.replica import Replica
from shunter.system.nvml import Gpus, used, visible

CGROUPS = "/sys/fs/cgroup"


def usage_of(replicas: Sequence[Replica]) -> Iterator[UsageRecord]:
    """Yield what the containers among the replicas of a job use now; those that do not run are left out."""
    running = [
        replica
        for replica in replicas
        if isinstance(replica, ContainerReplica) and replica.is_running and not replica.is_lost
    ]
    found = (inspect(running) or {}) if running else {}
    gpus = Gpus().usage() if any(replica.gpus != "" for replica in running) else []
    numbers = {id(replica): number for number, replica in enumerate(replicas)}
    for replica in running:
        details = found.get(replica.container.name, {})
        pid = (details.get("State") or {}).get("Pid") or 0
        busy = used(visible(gpus, replica.gpus))
        record = record_of(pid, details.get("Id", ""), numbers[id(replica)], replica.restarts, busy)
        if record is not None:
            yield record


def record_of(
    pid: int, container_id: str, number: int, attempt: int, gpus: tuple[float, int] = (math.nan, 0)
) -> UsageRecord | None:
    """Return what a container uses now; None if it does not run on this machine.

    Args:
        pid: its first process; 0 if there is none.
        container_id: its id, all of it.
        number: its place among all replicas of the job.
        attempt: how often it was restarted.
        gpus: how busy its GPUs are in percent, and how many bytes of their memory are used.
    """
    places = _cgroups(pid, container_id) if pid else {}
    if not places:
        return None
    return UsageRecord(
        time.time(),
        number,
        gpus[0],
        _cpu_seconds(places),
        _memory(places),
        *_storage(places),
        *_network(pid),
        gpus[1],
        attempt,
    )


def _cgroups(pid: int, container_id: str) -> dict[str, str]:
    """Return the directories of a container's cgroups by controller, "" for version 2.

    None of them if the process is not the container's: its daemon may be another machine's.
    """
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
    return _field(places, "cpu.stat", "usage_usec") / 1e6


def _memory(places: dict[str, str]) -> int:
    """Return the memory in bytes, without the pages of files that the kernel would reclaim first."""
    if "memory" in places:
        usage = int(_read(places["memory"], "memory.usage_in_bytes") or 0)
        return max(0, usage - _field(places, "memory.stat", "total_inactive_file", "memory"))
    usage = int(_read(places.get("", ""), "memory.current") or 0)
    return max(0, usage - _field(places, "memory.stat", "inactive_file"))


def _storage(places: dict[str, str]) -> tuple[int, int]:
    """Return how many bytes were read and written."""
    if "blkio" in places:
        text = _read(places["blkio"], "blkio.throttle.io_service_bytes")
        return _sum(r"\bRead (\d+)", text), _sum(r"\bWrite (\d+)", text)
    text = _read(places.get("", ""), "io.stat")
    return _sum(r"\brbytes=(\d+)", text), _sum(r"\bwbytes=(\d+)", text)


def _network(pid: int) -> tuple[int, int]:
    """Return how many bytes a process's network has received and sent; zeros if we may not know."""
    received = sent = 0
    for line in _read(f"/proc/{pid}/net/dev").splitlines()[2:]:
        name, _, counters = line.partition(":")
        fields = counters.split()
        if name.strip() != "lo" and len(fields) > 8:
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent


def _field(places: dict[str, str], file: str, name: str, controller: str = "") -> int:
    found = re.search(rf"^{name} (\d+)", _read(places.get(controller, ""), file), re.MULTILINE)
    return int(found[1]) if found else 0


def _sum(pattern: str, text: str) -> int:
    return sum(map(int, re.findall(pattern, text)))


def _read(*path: str) -> str:
    try:
        with open(os.path.join(*path), encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
