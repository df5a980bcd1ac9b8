"""Forwarding a job's metrics to other systems: TensorBoard, MLflow, or those of plugins.

A forwarder is a function of the entry-point group ``shunter.metric_forwarders``: it takes a destination as
text ("" for the default) and returns a `MetricForwarder`. Two are built in; a plugin cannot take their names.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Sequence
from typing import Any, Protocol

from shunter._toolkit.tracking import mlflow_tracker, runs
from shunter.errors import BackendError, ConfigError, did_you_mean
from shunter.metrics.event_files import masked_crc
from shunter.metrics.series import Series
from shunter.plugins import entry_points
from shunter.system.identity import host_name

#: The most metrics that MLflow accepts in one call.
_MLFLOW_BATCH = 1000

Point = tuple[float, float, float]


class MetricForwarder(Protocol):
    """Sends metrics somewhere."""

    def send(self, handle: str, series: Series, points: Sequence[Point]) -> None:
        """Send points of a series of a job: step, seconds since the epoch (nan where unknown), value."""

    def close(self) -> None:
        """Send the rest."""


def make_forwarder(text: str) -> MetricForwarder:
    """Return the forwarder that ``NAME`` or ``NAME=DESTINATION`` means.

    Raises:
        ConfigError: there is none of this name, or it cannot be used.
    """
    name, _, destination = text.partition("=")
    makers: dict[str, Any] = {point.name: point for point in entry_points("metric_forwarders")}
    if name == "tensorboard":
        return TensorBoardForwarder(destination)
    if name == "mlflow":
        return MLflowForwarder(destination)
    if name not in makers:
        known = ["tensorboard", "mlflow", *makers]
        raise ConfigError(
            f"there is no metrics forwarder {name!r}, only {', '.join(known)}",
            hint=did_you_mean(name, known),
        )
    made: MetricForwarder = makers[name].call(destination)
    return made


class ForwardedMetrics:
    """Sends the values of series that have not been sent yet to a forwarder."""

    def __init__(self, forwarder: MetricForwarder) -> None:
        self._forwarder = forwarder
        self._sent: dict[tuple[str, str, str, int, str, str], int] = {}

    def send(self, handle: str, several: Sequence[Series]) -> int:
        """Send the new values of a job's series; returns their number."""
        total = 0
        for series in several:
            key = (handle, series.name, series.role, series.replica, series.rank, series.source)
            points = series.points_after(self._sent.get(key, 0))
            if points:
                self._forwarder.send(handle, series, points)
                self._sent[key] = series.count
                total += len(points)
        return total

    def close(self) -> None:
        """Send the rest."""
        self._forwarder.close()


class TensorBoardForwarder:
    """Writes event files, ``DIR/APP_ID/ROLE-K/events.out.tfevents...``: a run for each replica.

    The format is described in `event_files`, which reads it.

    Args:
        destination: the directory; by default ``runs``.
    """

    def __init__(self, destination: str) -> None:
        self._root = destination or "runs"
        self._files: dict[str, Any] = {}

    def send(self, handle: str, series: Series, points: Sequence[Point]) -> None:
        """Append the points to the replica's file."""
        folder = f"{series.role}-{series.replica}" + (f"-rank{series.rank}" if series.rank else "")
        run = os.path.join(self._root, handle.rpartition("/")[2], folder)
        try:
            file = self._files.get(run) or self._open(run)
            for step, moment, value in points:
                when = time.time() if math.isnan(moment) else moment
                summary = _field(1, _field(1, series.name.encode()) + _key(2, 5) + struct.pack("<f", value))
                _write(file, _event(when) + _key(2, 0) + _varint(int(step)) + _field(5, summary))
            file.flush()
        except OSError as error:
            raise BackendError(f"cannot write event files in {run}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _open(self, run: str) -> Any:
        os.makedirs(run, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now)}.{host_name()}.{os.getpid()}.shunter"
        file = self._files[run] = open(os.path.join(run, name), "ab")  # noqa: SIM115 - closed by `close`
        if not file.tell():
            _write(file, _event(now) + _field(3, b"brain.Event:2"))
        return file


def _write(file: Any, data: bytes) -> None:
    length = struct.pack("<Q", len(data))
    file.write(length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data)))


def _event(when: float) -> bytes:
    return _key(1, 1) + struct.pack("<d", when)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _field(number: int, data: bytes) -> bytes:
    return _key(number, 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class MLflowForwarder:
    """Logs metrics to the MLflow run of a job: that of the tracker `mlflow`, created if it does not exist.

    With several replicas the metrics of all but the first are called ``NAME/ROLE-K``.

    Args:
        destination: the tracking URI; by default that of MLflow's own variables.
    """

    def __init__(self, destination: str) -> None:
        try:
            self._tracker = mlflow_tracker.MLflowTracker(tracking_uri=destination or None)
        except runs.ConfigError as error:
            raise ConfigError(str(error), hint="pip install mlflow-skinny") from error

    def send(self, handle: str, series: Series, points: Sequence[Point]) -> None:
        """Log the points."""
        from mlflow.entities import Metric

        suffix = f"/{series.role}-{series.replica}" if series.replica else ""
        name = series.name + suffix + (f"/rank{series.rank}" if series.rank not in ("", "0") else "")
        now = time.time()
        metrics = [
            Metric(name, value, int(1000 * (now if math.isnan(moment) else moment)), int(step))
            for step, moment, value in points
        ]
        try:
            run_id = self._tracker.get_run_id(handle)
            for start in range(0, len(metrics), _MLFLOW_BATCH):
                self._tracker.client.log_batch(run_id, metrics=metrics[start : start + _MLFLOW_BATCH])
        except Exception as error:  # clients raise many kinds of errors, depending on the server
            raise BackendError(f"MLflow did not accept the metrics of {handle}: {error}") from error

    def close(self) -> None:
        """Mark the run as finished."""
        self._tracker.close()
