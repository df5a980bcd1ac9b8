"""What is kept of a job that has ended: its model, its output, its metrics."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainyard.schedulers.aws.sagemaker_local.data import artifacts
from trainyard.schedulers.aws.sagemaker_local.data.objects import Place, StoreFailure
from trainyard.schedulers.aws.sagemaker_local.hosts.layout import Tree
from trainyard.schedulers.aws.sagemaker_local.logs import Log, log_path
from trainyard.schedulers.aws.sagemaker_local.store import JobDir

if TYPE_CHECKING:
    from trainyard.schedulers.aws.sagemaker_local.runner import TrainingRun


def send_results(run: TrainingRun, trees: dict[str, Tree], *, with_model: bool) -> str:
    """Send model and output of the hosts; returns what went wrong, "" if nothing did.

    What could not be sent is kept in the job's directory, and the text says where.

    Args:
        run: the job's run.
        trees: the hosts' files.
        with_model: whether the model is sent; that of a failed job is not.
    """
    config = run.request["OutputDataConfig"]
    is_packed = config.get("CompressionType", "GZIP") != "NONE"
    target = Place.parse(config["S3OutputPath"]).join(run.request["TrainingJobName"], "output")
    output, _ = artifacts.merge({name: tree.part("output", "data") for name, tree in trees.items()})
    kinds = [("output", output)] if output else []
    conflicts: list[str] = []
    if with_model:
        model, conflicts = artifacts.merge({name: tree.part("model") for name, tree in trees.items()})
        kinds.insert(0, ("model", model))
    if not kinds:
        return ""
    run.journal.move("Uploading", _message(conflicts))
    for kind, entries in kinds:
        try:
            uri = artifacts.send(kind, entries, target, run.job.work, run.objects, is_packed=is_packed)
        except (StoreFailure, OSError) as error:
            return f"{error}{_keep(run.job, kinds)}"
        if kind == "model":
            run.journal.set(artifacts=uri)
    return ""


def _message(conflicts: list[str]) -> str:
    if not conflicts:
        return ""
    more = f" and {len(conflicts) - 3} more" if len(conflicts) > 3 else ""
    return (
        "Uploading generated training model; hosts wrote different files to "
        f"{', '.join(conflicts[:3])}{more}: the first host's are there, the others' are below algo-N/"
    )


def _keep(job: JobDir, kinds: list[tuple[str, list[tuple[str, str]]]]) -> str:
    folder = job.file("artifacts")
    try:
        os.makedirs(folder, exist_ok=True)
        for kind, entries in kinds:
            partial = os.path.join(folder, f".{kind}.partial")
            artifacts.pack(entries, partial)
            os.replace(partial, os.path.join(folder, f"{kind}.tar.gz"))
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        return ""
    return f"; what was to be sent is kept in {folder}"


def final_metrics(job: JobDir, request: dict[str, Any], state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the last value of every metric that the last attempt's logs show."""
    found: dict[str, dict[str, Any]] = {}
    streams = [stream for host in state["hosts"] for stream in host["streams"][-1:]]
    for name, moment, value in metric_values(job, request, streams):
        if moment >= found.get(name, {}).get("Timestamp", 0):
            found[name] = {"MetricName": name, "Value": value, "Timestamp": moment}
    definitions = request["AlgorithmSpecification"].get("MetricDefinitions") or ()
    return [found[each["Name"]] for each in definitions if each["Name"] in found]


def metric_values(
    job: JobDir, request: dict[str, Any], streams: list[str]
) -> Iterator[tuple[str, float, float]]:
    """Yield metrics that logs show: name, time in seconds since the epoch, and value; a log at a time."""
    patterns = []
    for definition in request.get("AlgorithmSpecification", {}).get("MetricDefinitions") or ():
        try:
            patterns.append((definition["Name"], re.compile(definition["Regex"])))
        except re.error:  # refused before; Java's dialect is not quite Python's
            continue
    if not patterns:
        return
    for stream in streams:
        for event in Log(log_path(job, stream)).events(0, is_complete=True):
            line = event.data.decode("utf-8", "replace")
            for name, pattern in patterns:
                value = _value(pattern, line)
                if value is not None:
                    yield name, event.time_ms / 1000, value


def _value(pattern: re.Pattern[str], line: str) -> float | None:
    value = None
    for match in pattern.finditer(line):
        text = match.group(1) if pattern.groups else match.group()
        try:
            value = float(text)
        except (TypeError, ValueError):
            continue
    return value
