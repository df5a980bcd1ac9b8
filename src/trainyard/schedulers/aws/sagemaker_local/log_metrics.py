"""The metrics of a job: values that the regular expressions of its request find in its logs."""

from __future__ import annotations

import bisect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from trainyard.schedulers.aws.sagemaker_local.training_job import TrainingJob

#: How many bytes of a log are searched at a time.
BLOCK = 256 << 10


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
    from trainyard.metric_search import MetricSearch
    from trainyard.schedulers.aws.sagemaker_local.logs import Log

    with MetricSearch(pairs) as search:
        for stream in streams:
            for starts, times, block in _blocks(Log(job.log_path(stream))):
                for at, index, value in search.search(block):
                    yield pairs[index][0], times[bisect.bisect_right(starts, at) - 1], value
        problems += search.problems


def _blocks(log: Any) -> Iterator[tuple[list[int], list[float], bytes]]:
    """Yield the lines of a log in blocks: where each begins, its time, and the bytes of all."""
    lines: list[bytes] = []
    starts: list[int] = []
    times: list[float] = []
    size = 0
    for event in log.events(0, is_complete=True):
        line = event.data.rstrip(b"\n") + b"\n"
        starts.append(size)
        times.append(event.time_ms / 1000)
        lines.append(line)
        size += len(line)
        if size >= BLOCK:
            yield starts, times, b"".join(lines)
            lines, starts, times, size = [], [], [], 0
    if lines:
        yield starts, times, b"".join(lines)
