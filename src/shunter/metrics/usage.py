"""What replicas use, as metrics: ``system/cpu_percent``, ``system/memory_bytes``, ...

Totals become rates: CPU in percent of one CPU, storage and network in bytes per second. The step is the
number of seconds since the first sample of the replica.
"""

from __future__ import annotations

from collections.abc import Iterable

from shunter._toolkit.usage_log import usage_in
from shunter.metrics.series import USAGE, MetricTable
from shunter.schedulers.responses import LogBlock, ReplicaUsage

PREFIX = "system/"
#: By total: the name of its rate, and the factor that converts units per second into it.
_RATES = {"cpu": ("cpu_percent", 100.0)}


class UsageMetrics:
    """Turns samples into values of a table.

    Attributes:
        last_time: when the last sample was taken, in seconds since the epoch.
    """

    def __init__(self) -> None:
        self.last_time = 0.0
        self._first: dict[tuple[str, int], float] = {}
        self._before: dict[tuple[str, int], ReplicaUsage] = {}

    def add_lines(self, table: MetricTable, block: LogBlock) -> bool:
        """Add what the toolkit wrote to a log, see `usage_log`; returns whether there was anything."""
        samples = []
        for usage in usage_in(block.data):
            levels = {"memory_bytes": float(usage.memory)}
            if usage.gpu_percent >= 0:
                levels |= {
                    "gpu_percent": usage.gpu_percent,
                    "gpu_memory_bytes": float(usage.most_gpu_memory),
                }
            place = (block.role, block.replica)
            if place not in self._before:
                start = usage.time - usage.seconds
                self._first[place] = start
                self._before[place] = ReplicaUsage(*place, start, 0, {}, {"cpu": 0.0})
            samples.append(ReplicaUsage(*place, usage.time, 0, levels, {"cpu": usage.cpu_seconds}))
        return self.add_to(table, samples)

    def add_to(self, table: MetricTable, samples: Iterable[ReplicaUsage]) -> bool:
        """Add samples to a table; returns whether there were any."""
        is_new = False
        for sample in samples:
            is_new = True
            place = (sample.role, sample.replica)
            self.last_time = max(self.last_time, sample.time)
            step = round(sample.time - self._first.setdefault(place, sample.time), 1)
            values = dict(sample.levels)
            before = self._before.get(place)
            if before is not None and before.attempt == sample.attempt and sample.time > before.time:
                for name, total in sample.totals.items():
                    rate, factor = _RATES.get(name, (f"{name}_per_second", 1.0))
                    grown = max(0.0, total - before.totals.get(name, total))
                    values[rate] = factor * grown / (sample.time - before.time)
            self._before[place] = sample
            for name, value in values.items():
                table.add(PREFIX + name, place, value, step, sample.time, source=USAGE)
        return is_new
