"""Samples what the replicas of a local job use: CPU, memory, storage, network, GPUs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from shunter import system
from shunter.schedulers.supervisor.container_replica import ContainerReplica
from shunter.schedulers.supervisor.container_usage import usage_of
from shunter.schedulers.supervisor.replica import Replica
from shunter.schedulers.supervisor.usage_file import UsageFile, UsageRecord
from shunter.system.nvml import Gpus, used, visible


class UsageSampler:
    """Samples the replicas of a job, and keeps the samples in a file."""

    def __init__(self, path: str) -> None:
        self._file = UsageFile(path)
        self._gpus = Gpus()

    def sample(self, replicas: Iterable[Replica], measured: Iterable[UsageRecord] = ()) -> float:
        """Take a sample; returns in how many seconds to take the next one.

        Args:
            replicas: all replicas of the job, in order; those that run are sampled.
            measured: records that were measured by other means.
        """
        began = time.thread_time()
        replicas = list(replicas)
        records = [*self._records(replicas), *usage_of(replicas, self._gpus), *measured]
        if records:
            self._file.append(records)
        return self._file.pause_after(time.thread_time() - began)

    def _records(self, replicas: list[Replica]) -> Iterator[UsageRecord]:
        running = {
            replica.pid: number
            for number, replica in enumerate(replicas)
            if replica.is_running and replica.pid and not isinstance(replica, ContainerReplica)
        }
        now = time.time()
        received, sent = system.network_bytes()
        gpus = self._gpus.usage()
        for pid, usage in system.process_usage(running).items():
            replica = replicas[running[pid]]
            gpu_percent, gpu_memory = used(visible(gpus, replica.env.get("CUDA_VISIBLE_DEVICES")))
            yield UsageRecord(
                now,
                running[pid],
                gpu_percent,
                usage.cpu_seconds,
                usage.memory,
                usage.read,
                usage.written,
                received,
                sent,
                gpu_memory,
                replica.restarts,
            )
