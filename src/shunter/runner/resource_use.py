"""What the roles of a job have used of what they asked for: `used 9.1 GiB of 64.0 GiB memory`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shunter._toolkit.usage_log import MOST_LINES, Usage, usage_in
from shunter.errors import ShunterError, StateStoreError
from shunter.runner.api import Runner
from shunter.schedulers.responses import LogQuery, ReplicaUsage
from shunter.specs.handles import parse_app_handle

#: Shorter runs say little about what a job needs.
SHORTEST = 10.0
#: How many replicas are looked at, where each is a question to the scheduler.
MOST_REPLICAS = 16
#: A proposal leaves this much more memory than was used, and is made if more than twice of that was asked.
ROOM, WASTE = 1.25, 2.0
_MIB = 1 << 20


@dataclass(frozen=True)
class Used:
    """What the replicas of a role have used: of each number the most of any replica.

    Args:
        memory: bytes, at the most.
        cpus: on average; nan if unknown.
        gpu_percent: how busy the GPUs were on average; nan without any.
        gpu_memory: bytes on all of a replica's GPUs, at the most.
    """

    memory: float
    cpus: float = math.nan
    gpu_percent: float = math.nan
    gpu_memory: float = 0.0


def used_by(runner: Runner, handle: str, *, reads_logs: bool = True) -> dict[str, Used]:
    """Return by role what a job has used so far; nothing if that is not known, or it ran only briefly.

    Without ``reads_logs`` only jobs of this machine are looked at.
    """
    parsed = parse_app_handle(handle)
    try:
        scheduler = runner.scheduler(parsed.scheduler_backend)
        if scheduler.capabilities.is_local:
            return _of_samples(scheduler.details(parsed.app_id).usage(0.0))
        if not reads_logs:
            return {}
        replicas = runner.replicas(handle)[:MOST_REPLICAS]
        lines: dict[tuple[str, int], Usage] = {}
        for block in runner.log_blocks(handle, replicas, LogQuery(last=MOST_LINES), with_usage=True):
            for usage in usage_in(block.data):
                lines[block.role, block.replica] = usage
    except (ShunterError, NotImplementedError, OSError):  # a look at the log is not what was asked for
        return {}
    long = {place: usage for place, usage in lines.items() if usage.seconds >= SHORTEST}
    return _by_role((role, _of_line(usage)) for (role, _), usage in long.items())


def _of_line(usage: Usage) -> Used:
    gpu = usage.mean_gpu_percent
    return Used(
        usage.most_memory,
        usage.cpu_seconds / usage.seconds,
        math.nan if gpu < 0 else gpu,
        usage.most_gpu_memory,
    )


def _of_samples(samples: Iterable[ReplicaUsage]) -> dict[str, Used]:
    by_replica: dict[tuple[str, int], list[ReplicaUsage]] = {}
    for sample in samples:
        by_replica.setdefault((sample.role, sample.replica), []).append(sample)
    found = []
    for (role, _), several in by_replica.items():
        attempt = [sample for sample in several if sample.attempt == several[-1].attempt]
        seconds = attempt[-1].time - attempt[0].time
        if seconds < SHORTEST:
            continue
        busy = [sample.levels["gpu_percent"] for sample in several if "gpu_percent" in sample.levels]
        used = Used(
            max(sample.levels["memory_bytes"] for sample in several),
            (attempt[-1].totals["cpu"] - attempt[0].totals["cpu"]) / seconds,
            math.fsum(busy) / len(busy) if busy else math.nan,
            max(sample.levels.get("gpu_memory_bytes", 0.0) for sample in several),
        )
        found.append((role, used))
    return _by_role(found)


def _by_role(found: Iterable[tuple[str, Used]]) -> dict[str, Used]:
    most: dict[str, Used] = {}
    for role, used in found:
        other = most.get(role, used)
        most[role] = Used(
            max(used.memory, other.memory),
            _most(used.cpus, other.cpus),
            _most(used.gpu_percent, other.gpu_percent),
            max(used.gpu_memory, other.gpu_memory),
        )
    return most


def _most(one: float, other: float) -> float:
    return one if math.isnan(other) else max(other, one)


# ---- in words


def use_lines(runner: Runner, handle: str) -> list[str]:
    """Return a line for each role of a job: what it has used so far, and what it asked for."""
    try:
        record = runner.history.find(handle)
    except StateStoreError:
        record = None
    return use_texts(record.app if record is not None else None, used_by(runner, handle))


def use_texts(app: Mapping[str, Any] | None, used: Mapping[str, Used]) -> list[str]:
    """Return a line for each role, with what its definition asked for."""
    return [f"{role}: {_text(_asked(app, role), each)}" for role, each in used.items()]


def _asked(app: Mapping[str, Any] | None, role: str) -> Mapping[str, Any]:
    for definition in (app or {}).get("roles") or ():
        if definition.get("name") == role:
            return definition.get("resource") or {}
    return {}


def _text(asked: Mapping[str, Any], used: Used) -> str:
    memory, cpu, gpu = (float(asked.get(name) or 0) for name in ("memMB", "cpu", "gpu"))
    facts = [f"used {size(used.memory)}{f' of {size(memory * _MIB)}' if memory > 0 else ''} memory"]
    if not math.isnan(used.cpus):
        facts.append(f"{used.cpus:.1f}{f' of {cpu:g}' if cpu > 0 else ''} CPUs on average")
    if not math.isnan(used.gpu_percent):
        gpus, their = (f"{gpu:g} GPUs", "their") if gpu > 1 else ("GPU", "its")
        facts.append(f"{gpus} {used.gpu_percent:.0f} % busy, {size(used.gpu_memory)} of {their} memory")
    return ", ".join(facts)


def proposals(app: Mapping[str, Any], used: Mapping[str, Used]) -> list[str]:
    """Return for each role whose memory or CPUs do not suit what was used: what would, by our words."""
    found = []
    for role, each in used.items():
        asked = _asked(app, role)
        memory, cpu = float(asked.get("memMB") or 0) * _MIB, float(asked.get("cpu") or 0)
        enough = math.ceil(each.memory * ROOM / (1 << 30))
        words = []
        if memory > 0 and (memory < each.memory * ROOM or memory > WASTE * enough * (1 << 30)):
            words.append(f"mem={enough}G")
        cpus = 0 if math.isnan(each.cpus) else max(1, math.ceil(each.cpus))
        if cpus and cpu > WASTE * cpus:
            words.append(f"cpu={cpus}")
        if words:
            found.append(f"{role}: {', '.join(words)} would suit that")
    return found


def size(count: float) -> str:
    """Return a number of bytes with a unit."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / _MIB:.0f} MiB"
