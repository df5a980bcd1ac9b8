"""Samples of what containers of this machine use; those of another machine's daemon have none."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from shunter.schedulers.supervisor.container_replica import ContainerReplica, inspect
from shunter.schedulers.supervisor.replica import Replica
from shunter.schedulers.supervisor.usage_file import UsageRecord
from shunter.system.cgroups import container_usage, network_bytes_of
from shunter.system.nvml import Gpus, used, visible


def usage_of(replicas: Sequence[Replica], gpus: Gpus) -> Iterator[UsageRecord]:
    """Yield what the containers among the replicas of a job use now; those that do not run are left out."""
    running = {
        replica: number
        for number, replica in enumerate(replicas)
        if isinstance(replica, ContainerReplica) and replica.is_running and not replica.is_lost
    }
    found = (inspect(list(running)) or {}) if running else {}
    has_gpus = any(replica.container.gpus != "" for replica in running)
    now = gpus.usage() if has_gpus else []
    for replica, number in running.items():
        details = found.get(replica.container.name, {})
        pid = (details.get("State") or {}).get("Pid") or 0
        busy = used(visible(now, replica.container.gpus))
        record = record_of(pid, details.get("Id", ""), number, replica.restarts, busy)
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
    usage = container_usage(pid, container_id) if pid else None
    if usage is None:
        return None
    cpu_seconds, memory, read, written = usage
    received, sent = network_bytes_of(pid)
    gpu_percent, gpu_memory = gpus
    return UsageRecord(
        time.time(),
        number,
        gpu_percent,
        cpu_seconds,
        memory,
        read,
        written,
        received,
        sent,
        gpu_memory,
        attempt,
    )
