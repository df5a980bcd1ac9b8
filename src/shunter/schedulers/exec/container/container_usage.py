"""What containers use, as the daemon measures it: CPU, memory, storage, network; GPUs as their driver does.

The watcher of a job keeps samples of it in a file while the job runs.

The fields are those of "Get container stats" of Docker's Engine API. Memory does not include the file pages
that the kernel would reclaim first, as in `docker stats`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from shunter.docker.daemon_errors import EngineError
from shunter.docker.engine import Engine
from shunter.errors import ShunterError
from shunter.parallel import for_all
from shunter.paths import make_private_dir
from shunter.schedulers.exec.container.inventory import Container, Job, results_dir, usage_path
from shunter.schedulers.exec.usage_file import UsageFile, UsageRecord, replica_usage
from shunter.schedulers.responses import ReplicaUsage
from shunter.system.nvml import Gpus, used, visible


class ContainerSampler:
    """Keeps samples of the containers of a job."""

    def __init__(self, engine: Engine, app_id: str) -> None:
        self._engine = engine
        self._file = UsageFile(usage_path(app_id))
        self._gpus = Gpus()
        self._due = 0.0

    def look(self, job: Job) -> float:
        """Take a sample if it is time for one; returns in how many seconds the next one is due."""
        now = time.monotonic()
        if now < self._due:
            return self._due - now
        began = time.process_time()
        numbers = {place: number for number, place in enumerate(job.places())}
        containers = job.by_replica()
        gpus = self._gpus.usage() if any(each.gpus != "" for each in containers.values()) else []
        records = []
        for sample in usage_now(self._engine, list(containers.values())):
            place = (sample.role, sample.replica)
            records.append(_record(sample, numbers[place], *used(visible(gpus, containers[place].gpus))))
        if records:
            with contextlib.suppress(ShunterError):  # on a full disk there are no samples
                make_private_dir(results_dir(job.app_id))
                self._file.append(records)
        pause = self._file.pause_after(time.process_time() - began)
        self._due = now + pause
        return pause


def usage_of(engine: Engine, job: Job, after: float) -> Iterator[ReplicaUsage]:
    """Yield the samples of a job after a time: those that its watcher has kept, or what it uses now."""
    path = usage_path(job.app_id)
    if os.path.exists(path):
        yield from replica_usage(path, job.places(), after)
    else:
        yield from usage_now(engine, list(job.by_replica().values()))


def usage_now(engine: Engine, containers: Sequence[Container]) -> list[ReplicaUsage]:
    """Return the usage of containers that run; one that ends meanwhile is left out."""
    found: list[ReplicaUsage] = []

    def ask(container: Container) -> None:
        try:
            stats = _stats(engine, container.id)
        except EngineError:
            return
        sample = sample_of(container.role, container.replica, container.restarts, stats, time.time())
        if sample is not None:
            found.append(sample)

    for_all(ask, [each for each in containers if each.state == "running"])
    return sorted(found, key=lambda sample: (sample.role, sample.replica))


def record_of(engine: Engine, container: str, number: int, attempt: int) -> UsageRecord | None:
    """Return what a container uses now as the record of a file; None if it has just ended.

    ``number`` is the replica's place among all replicas of the job, ``attempt`` how often it was restarted.

    Raises:
        EngineError: the daemon refuses.
        EngineUnavailableError: it does not answer.
    """
    found = sample_of("", number, attempt, _stats(engine, container), time.time())
    return None if found is None else _record(found, number, *used([]))


def _stats(engine: Engine, container: str) -> dict[str, Any]:
    params = {"stream": False, "one-shot": True}
    stats: dict[str, Any] | None = engine.request("GET", f"/containers/{container}/stats", params=params)
    return stats or {}


def _record(sample: ReplicaUsage, number: int, gpu_percent: float, gpu_memory: int) -> UsageRecord:
    totals = sample.totals
    return UsageRecord(
        sample.time,
        number,
        gpu_percent,
        totals["cpu"],
        int(sample.levels["memory_bytes"]),
        int(totals["disk_read"]),
        int(totals["disk_written"]),
        int(totals["network_received"]),
        int(totals["network_sent"]),
        gpu_memory,
        sample.attempt,
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
