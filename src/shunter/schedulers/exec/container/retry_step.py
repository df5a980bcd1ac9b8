"""Retries of containers by class of failure: a marker that restarts one, or that its failure is final."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from shunter.docker.engine import Engine
from shunter.schedulers.exec.container.inventory import FINAL, RETRY, Container, Job
from shunter.schedulers.exec.container.logs import lines_since
from shunter.schedulers.exec.retry_counts import cause_of, words
from shunter.specs.retries import OOM, RetryRule

#: How many of the last lines are read to find the cause of a failure.
LOG_LINES = 2000


def decide(engine: Engine, job: Job, container: Container, reason: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the facts of the marker that says whether a failure is retried.

    The job has rules, and the container has failed; ``reason`` is why, as `judge` says it.
    """
    retries = [marker for marker in job.markers if marker.kind == RETRY]
    # The daemon may note the start of a program that ends at once after its end.
    since = max((m.at for m in retries if container.name in m.facts["was"]), default=0)

    def log_end() -> Sequence[str]:
        lines = lines_since(engine, container.id, since, LOG_LINES, complete=True)
        return [line.decode("utf-8", "replace").rstrip("\n") for _, line in lines]

    policy, limit = job.retries.get(container.role, ("REPLICA", 0))
    replica = f"{container.role}/{container.replica}"
    scope = {"REPLICA": replica, "ROLE": container.role}.get(policy, "")
    facts = {"id": container.replica, "exit_code": container.exit_code, "reason": reason}
    cause, evidence = cause_of(container.role, facts, log_end)
    named = cause.retry_class in job.rules
    rule = RetryRule(**job.rules[cause.retry_class]) if named else RetryRule(limit)
    counted = cause.retry_class if named else ""
    used = sum(m.facts["scope"] == scope and m.facts.get("class", "") == counted for m in retries)
    memory = container.memory_mb if cause.retry_class == OOM else 0
    against = rule.verdict(used, memory)
    group = [container]
    if policy != "REPLICA" and not against:
        group = [c for c in job.containers if policy == "APPLICATION" or c.role == container.role]
    found = {
        "scope": scope,
        "class": counted,
        "culprit": replica,
        "was": {each.name: each.started for each in group},
        "note": words(cause, evidence, rule, used, against, memory),
        "at": time.time_ns(),
    }
    if against:
        number = sum(marker.kind == FINAL for marker in job.markers)
        return f"{FINAL}-{number + 1}", found
    more = rule.more_memory(memory)
    if cause.retry_class == OOM and more > memory:
        found["memory_mb"] = {each.name: more for each in group if each.role == container.role}
    return f"{RETRY}-{len(retries) + 1}", found


def memory_for(job: Job, container: Container) -> int:
    """Return the memory in MB that a retry gives to a container; 0 if it keeps what it has."""
    given = [m for m in job.markers if m.kind == RETRY and container.name in m.facts.get("memory_mb", {})]
    if not given:
        return 0
    wanted = int(max(given, key=lambda marker: marker.at).facts["memory_mb"][container.name])
    return wanted if wanted > container.memory_mb else 0
