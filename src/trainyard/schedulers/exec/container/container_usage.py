"""What containers use now, as the daemon measures it: CPU, memory, storage, network.

The fields are those of "Get container stats" of Docker's Engine API. Memory is without the pages of files
that the kernel would give up first, as `docker stats` shows it.
"""

from __future__ import annotations

import time

from trainyard.docker.engine import EngineError
from trainyard.parallel import for_all
from trainyard.schedulers.exec.usage_file import UsageRecord
from trainyard.schedulers.responses import ReplicaUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from trainyard.docker.engine import Engine
    from trainyard.schedulers.exec.container.inventory import Container


def usage_now(engine: Engine, containers: Sequence[Container]) -> list[ReplicaUsage]:
    """Return what the running ones of some containers use; one that ends meanwhile is left out."""
    found: list[ReplicaUsage] = []

    def ask(container: Container) -> None:
        path = f"/containers/{container.id}/stats"
        try:
            stats = engine.request("GET", path, params={"stream": False, "one-shot": True})
        except EngineError:
            return
        sample = sample_of(container.role, container.replica, container.restarts, stats or {}, time.time())
        if sample is not None:
            found.append(sample)

    for_all(ask, [each for each in containers if each.state == "running"])
    return sorted(found, key=lambda sample: (sample.role, sample.replica))


def record_of(engine: Engine, container: str, number: int, attempt: int) -> UsageRecord | None:
    """Return what a container uses now as the record of a file; None if it has just ended.

    Args:
        engine: the daemon.
        container: its id.
        number: the replica's place among all replicas of the job.
        attempt: how often it was started again before.

    Raises:
        EngineError: the daemon refuses.
        EngineUnavailableError: it does not answer.
    """
    params = {"stream": False, "one-shot": True}
    stats = engine.request("GET", f"/containers/{container}/stats", params=params)
    found = sample_of("", number, attempt, stats or {}, time.time())
    if found is None:
        return None
    totals = {name: int(value) for name, value in found.totals.items()}
    return UsageRecord(
        found.time,
        number,
        float("nan"),
        found.totals["cpu"],
        int(found.levels["memory_bytes"]),
        totals["disk_read"],
        totals["disk_written"],
        totals["network_received"],
        totals["network_sent"],
        0,
        attempt,
    )


def sample_of(
    role: str, replica: int, attempt: int, stats: dict[str, Any], now: float
) -> ReplicaUsage | None:
    """Return the sample that an answer of the daemon holds; None if the container has just ended."""
    memory = stats.get("memory_stats") or {}
    if "usage" not in memory:
        return None
    detail = memory.get("stats") or {}
    cache = detail.get("inactive_file", detail.get("total_inactive_file", 0))  # of cgroups v2, v1
    totals = {"cpu": stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9}
    moved = {"read": 0, "write": 0}
    for entry in (stats.get("blkio_stats") or {}).get("io_service_bytes_recursive") or ():
        operation = str(entry.get("op", "")).lower()
        if operation in moved:
            moved[operation] += entry.get("value", 0)
    totals |= {"disk_read": moved["read"], "disk_written": moved["write"]}
    networks = (stats.get("networks") or {}).values()
    totals["network_received"] = sum(network.get("rx_bytes", 0) for network in networks)
    totals["network_sent"] = sum(network.get("tx_bytes", 0) for network in networks)
    levels = {"memory_bytes": float(max(0, memory["usage"] - cache))}
    return ReplicaUsage(role, replica, now, attempt, levels, totals)
