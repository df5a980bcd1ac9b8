"""What is kept of a job that has ended: its model, its output, its metrics."""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.schedulers.aws.sagemaker_local.data import artifacts
from trainyard.schedulers.aws.sagemaker_local.data.objects import Place, StoreFailure
from trainyard.schedulers.aws.sagemaker_local.hosts.layout import Tree
from trainyard.schedulers.aws.sagemaker_local.logs import Log, log_path
from trainyard.schedulers.aws.sagemaker_local.training_job import TrainingJob
from trainyard.schedulers.exec.process.documents import is_full_disk

if TYPE_CHECKING:
    from trainyard.schedulers.aws.sagemaker_local.training_run import TrainingRun


@dataclass(frozen=True)
class Unsent:
    """Why something that a job leaves behind could not be sent, in words; and whether a disk was full."""

    problem: str
    is_disk_full: bool


def send_results(run: TrainingRun, trees: dict[str, Tree], *, with_model: bool) -> Unsent | None:
    """Send model and output of the hosts; returns what went wrong, None if nothing did.

    What could not be sent is kept in the job's directory, and the text says where. A full disk is waited for,
    unless somebody waits for the end of the job.

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
        return None
    patience = 0.0 if run.ending == "stop" else None
    run.journal.move("Uploading", _message(conflicts))
    for kind, entries in kinds:
        try:
            send = functools.partial(
                artifacts.send, kind, entries, target, run.job.work, run.objects, is_packed=is_packed
            )
            uri = run.objects.await_room(send, may_cancel=False, patience=patience)
        except (StoreFailure, OSError) as error:
            return Unsent(f"{error}{_keep(run.job, kinds, trees)}", is_full_disk(error))
        if kind == "model":
            run.journal.set(artifacts=uri)
    return None


def _message(conflicts: list[str]) -> str:
    if not conflicts:
        return ""
    more = f" and {len(conflicts) - 3} more" if len(conflicts) > 3 else ""
    return (
        "Uploading generated training model; hosts wrote different files to "
        f"{', '.join(conflicts[:3])}{more}: the first host's are there, the others' are below algo-N/"
    )


def _keep(job: TrainingJob, kinds: list[tuple[str, list[tuple[str, str]]]], trees: dict[str, Tree]) -> str:
    folder = job.file("artifacts")
    try:
        os.makedirs(folder, exist_ok=True)
        for kind, entries in kinds:
            partial = os.path.join(folder, f".{kind}.partial")
            artifacts.pack(entries, partial)
            os.replace(partial, os.path.join(folder, f"{kind}.tar.gz"))
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        return _keep_as_it_is(folder, trees)
    return f"; what was to be sent is kept in {folder}"


def _keep_as_it_is(folder: str, trees: dict[str, Tree]) -> str:
    """Move what was to be sent out of the way of its removal, which takes no room."""
    try:
        for host, tree in trees.items():
            os.makedirs(os.path.join(folder, host))
            for name in ("model", "output"):
                os.rename(tree.part(name), os.path.join(folder, host, name))
    except OSError:
        return ""
    return f"; what was to be sent is kept, not packed, in {folder}"


def final_metrics(job: TrainingJob, request: dict[str, Any], state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the last value of every metric that the last attempt's logs show."""
    found: dict[str, dict[str, Any]] = {}
    streams = [stream for host in state["hosts"] for stream in host["streams"][-1:]]
    for name, moment, value in metric_values(job, request, streams):
        if moment >= found.get(name, {}).get("Timestamp", 0):
            found[name] = {"MetricName": name, "Value": value, "Timestamp": moment}
    definitions = request["AlgorithmSpecification"].get("MetricDefinitions") or ()
    return [found[each["Name"]] for each in definitions if each["Name"] in found]


def metric_values(
    job: TrainingJob, request: dict[str, Any], streams: list[str]
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
