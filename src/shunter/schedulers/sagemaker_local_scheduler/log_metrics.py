"""The metrics of a job: values that the regular expressions of its request find in its logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shunter.metric_search import MetricSearch, lines_of
from shunter.schedulers.sagemaker_local_scheduler.logs import Log
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob


def final_metrics(
    job: TrainingJob, request: dict[str, Any], state: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the last value of every metric in the last attempt's logs, and what went wrong, in words."""
    found: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    streams = [stream for host in state["hosts"] for stream in host["streams"][-1:]]
    for name, moment, value in metric_values(job, request, streams, problems):
        if moment >= found.get(name, {}).get("Timestamp", 0):
            found[name] = {"MetricName": name, "Value": value, "Timestamp": moment}
    definitions = request["AlgorithmSpecification"].get("MetricDefinitions") or ()
    return [found[each["Name"]] for each in definitions if each["Name"] in found], problems


def metric_values(
    job: TrainingJob, request: dict[str, Any], streams: list[str], problems: list[str]
) -> Iterator[tuple[str, float, float]]:
    """Yield metrics that logs show: name, time in seconds since the epoch, and value; a log at a time.

    ``problems`` receives why a metric is not complete.
    """
    definitions = request.get("AlgorithmSpecification", {}).get("MetricDefinitions") or ()
    pairs = [(each["Name"], each["Regex"]) for each in definitions]
    if not pairs:
        return
    search = MetricSearch(pairs)
    for stream in streams:
        for event in Log(job.log_path(stream)).events(0, is_complete=True):
            for _, line in lines_of(event.data):
                for name, value in search.values(line):
                    yield name, event.time_ms / 1000, value
    problems += search.problems
