"""CloudWatch's GetMetricStatistics on the metrics that training jobs write into their logs."""

from __future__ import annotations

import math
from typing import Any

from shunter.aws_endpoint.training_jobs import find_job
from shunter.aws_endpoint.wire_formats import Timestamp
from shunter.schedulers.sagemaker_local_scheduler.description import document_of
from shunter.schedulers.sagemaker_local_scheduler.log_metrics import metric_values
from shunter.schedulers.sagemaker_local_scheduler.request_validation import ApiError, check

NAMESPACE = "/aws/sagemaker/TrainingJobs"
DIMENSION = "TrainingJobName"
MOST_POINTS = 1440
_SHORT_PERIODS = (1, 5, 10, 20, 30)


def get_metric_statistics(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """GetMetricStatistics. There are points where there are values, and none for any other metric."""
    try:
        check("GetMetricStatistics", params, "cloudwatch")
    except ApiError as error:
        raise ApiError("InvalidParameterValue", error.message) from None
    period, statistics = params["Period"], params.get("Statistics")
    if period not in _SHORT_PERIODS and period % 60:
        raise ApiError("InvalidParameterValue", "Period must be 1, 5, 10, 20, 30 or a multiple of 60 seconds")
    if not statistics or params.get("ExtendedStatistics"):
        raise ApiError(
            "InvalidParameterCombination",
            "Statistics are needed; ExtendedStatistics are not computed here",
        )
    start, end = _seconds(params["StartTime"]), _seconds(params["EndTime"])
    if start >= end:
        raise ApiError("InvalidParameterValue", "StartTime must be before EndTime")
    start -= start % min(period, 60)
    if (end - start) / period > MOST_POINTS:
        raise ApiError("InvalidParameterCombination", f"more than {MOST_POINTS} points: use a longer Period")
    points: dict[int, list[float]] = {}
    for moment, value in _values(params, region):
        if start <= moment < end:
            points.setdefault(int(moment // period) * period, []).append(value)
    return {
        "Label": params["MetricName"],
        "Datapoints": [_point(at, values, statistics) for at, values in sorted(points.items())],
    }


def _values(params: dict[str, Any], region: str) -> list[tuple[float, float]]:
    """Return times in seconds and values of the metric that is asked for."""
    dimensions = [(each["Name"], each["Value"]) for each in params.get("Dimensions") or ()]
    if params["Namespace"] != NAMESPACE or len(dimensions) != 1 or dimensions[0][0] != DIMENSION:
        return []
    job = find_job(dimensions[0][1], region)
    state = job.read_state() if job is not None else None
    if job is None or state is None:
        return []
    streams = [stream for host in state["hosts"] for stream in host["streams"]]
    found = metric_values(job, document_of(job).get("request", {}), streams, [])
    return [(moment, value) for name, moment, value in found if name == params["MetricName"]]


def _point(at: int, values: list[float], statistics: list[str]) -> dict[str, Any]:
    total = math.fsum(values)
    known = {
        "SampleCount": float(len(values)),
        "Sum": total,
        "Average": total / len(values),
        "Minimum": min(values),
        "Maximum": max(values),
    }
    return {"Timestamp": Timestamp(at), "Unit": "None", **{name: known[name] for name in statistics}}


def _seconds(moment: Any) -> float:
    """Return a time, which the two protocols write as a number or as text, in seconds since the epoch."""
    from botocore.utils import parse_to_aware_datetime

    return float(parse_to_aware_datetime(moment).timestamp())
