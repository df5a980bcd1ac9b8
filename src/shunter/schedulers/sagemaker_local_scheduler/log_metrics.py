"""The metrics of a job: values that the regular expressions of its request find in its logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from shunter.metric_search import MetricSearch, lines_of
from shunter.schedulers.responses import Stream
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor.log_reader import ReplicaLog
from shunter.schedulers.supervisor.replica import Replica


def final_metrics(
    job: TrainingJob, request: dict[str, Any], replicas: Iterable[Replica]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the last value of every metric in the last attempt's logs, and what went wrong, in words."""
    definitions = request["AlgorithmSpecification"].get("MetricDefinitions") or ()
    if not definitions:
        return [], []
    search = MetricSearch([(each["Name"], each["Regex"]) for each in definitions])
    values: dict[str, dict[str, Any]] = {}
    for replica in replicas:
        for name, moment, value in _values(job, replica, search):
            if moment >= values.get(name, {}).get("Timestamp", 0):
                values[name] = {"MetricName": name, "Value": value, "Timestamp": moment}
    return [values[each["Name"]] for each in definitions if each["Name"] in values], list(search.problems)


def _values(job: TrainingJob, replica: Replica, search: MetricSearch) -> Iterator[tuple[str, float, float]]:
    """Yield name, time in seconds since the epoch, and value of what the log of an attempt shows."""
    log = ReplicaLog.at(replica.log_dir, job.index_path(replica.role, replica.index), Stream.COMBINED)
    log.start_at(replica.log_starts)
    try:
        for part in log.rest():
            for _, line in lines_of(part.data):
                for name, value in search.values(line):
                    yield name, part.time_ns / 1e9, value
    finally:
        log.close()
