"""The data of charts: metrics of several jobs, read while they run, and grouped into buckets.

Each job that is looked at has a `MetricReader`, which reads what is new each time. It and its runner are kept
for the jobs that were looked at last.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from shunter.errors import ShunterError, described
from shunter.metrics import Series, decimate
from shunter.metrics.reader import MetricReader
from shunter.metrics.series import finite
from shunter.metrics.usage import PREFIX
from shunter.redaction import redact_text
from shunter.runner import get_runner
from shunter.specs.sweep_points import index_of, label_of
from shunter.sweeps.point_rows import known_points
from shunter.ui.runner_pool import NoAnswerError, RunnerPool

T = TypeVar("T")
#: Makes something of the metrics of a job, and of the points that it has if it is a sweep.
Shape = Callable[[MetricReader, Sequence[Mapping[str, Any]]], T]

MOST_JOBS = 24
BUCKETS = 400
#: Charts of one answer, and lines of each job in one of them.
MOST_CHARTS, MOST_LINES = 60, 64
#: Seconds that an answer waits for a job; what it has not read by then comes with a later one.
PATIENCE = 2.5
LEAST_AGE = 0.5
#: Seconds that one answer reads a log; of a large one the charts show how far it has been read.
MOST_READING = 2.0


class WatchedJob:
    """A job whose metrics are read."""

    def __init__(self, handle: str) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._reader: MetricReader | None = None
        self._points: Sequence[Mapping[str, Any]] = ()
        self._read_at = 0.0
        self._is_gone = False

    def read(self, shape: Shape[T]) -> T | None:
        """Return the metrics up to now, in a shape; None while another call reads the log.

        The job has its own runner, so that of the pool is not used.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._reader is None:
                runner = get_runner()
                self._points = known_points(runner, self._handle)
                self._reader = MetricReader(runner, self._handle, discovers=True, follow=True)
            reader = self._reader
            if time.monotonic() - self._read_at >= LEAST_AGE:
                reader.update(most_seconds=MOST_READING)
                self._read_at = time.monotonic()
            return shape(reader, self._points)
        finally:
            if self._is_gone:
                self._close()
            self._lock.release()

    def stop(self) -> None:
        """Close the reader, now or when the call that reads has ended."""
        self._is_gone = True
        if self._lock.acquire(blocking=False):
            self._close()
            self._lock.release()

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class ChartData:
    """The metrics of the jobs that a page shows.

    Args:
        pool: runs what has to wait.
    """

    def __init__(self, pool: RunnerPool) -> None:
        self._pool = pool
        self._jobs: OrderedDict[str, WatchedJob] = OrderedDict()

    async def read(
        self, handles: Sequence[str], by: str = "step", labels: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the series of jobs, what is wrong, and whether more will come.

        Args:
            by: step or time.
            labels: what stands for each of several jobs in the legend.
        """
        series: list[dict[str, Any]] = []
        problems: list[str] = []
        busy, over = False, True
        for handle in dict.fromkeys(handles):
            try:
                found = await self.of_job(handle, lambda reader, points: _in_buckets(reader, points, by))
            except (ShunterError, OSError, NotImplementedError, ValueError) as error:
                problems.append(f"The metrics of {handle} cannot be read: {redact_text(described(error))}")
                continue
            if found is None:
                busy = True
                continue
            name = (labels or {}).get(handle) or handle.rpartition("/")[2]
            prefix = f"{name} " if len(handles) > 1 else ""
            series += [{**one, "label": prefix + one["label"]} for one in found["series"]]
            if found["over"] and not found["series"] and prefix:
                problems.append(f"{handle.rpartition('/')[2]} has no metrics.")
            problems += found["problems"]
            busy = busy or found["busy"]
            over = over and found["over"]
        return {"series": series, "problems": problems, "busy": busy, "over": over and not busy}

    async def of_job(self, handle: str, shape: Shape[T]) -> T | None:
        """Return the metrics of a job in a shape; None if they have not been read yet."""
        job = self._watched(handle)
        try:
            return await self._pool.ask(handle.partition("://")[0], lambda _: job.read(shape), PATIENCE)
        except NoAnswerError:
            return None

    def _watched(self, handle: str) -> WatchedJob:
        job = self._jobs.pop(handle, None) or WatchedJob(handle)
        self._jobs[handle] = job
        while len(self._jobs) > MOST_JOBS:
            self._jobs.popitem(last=False)[1].stop()
        return job


def _in_buckets(reader: MetricReader, points: Sequence[Mapping[str, Any]], by: str) -> dict[str, Any]:
    problems = list(reader.problems)
    names = reader.by_name()
    if len(names) > MOST_CHARTS:
        problems.append(f"{MOST_CHARTS} of {len(names)} metrics are drawn.")
    series = []
    for name in sorted(names, key=lambda name: (name.startswith(PREFIX), name))[:MOST_CHARTS]:
        several = names[name]
        if len(several) > MOST_LINES:
            problems.append(f"{name}: {MOST_LINES} of {len(several)} replicas are drawn.")
        series += [_as_line(one, by, points) for one in several[:MOST_LINES]]
    return {"series": series, "problems": problems, "busy": reader.is_reading, "over": reader.is_over}


def _as_line(series: Series, by: str, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    buckets = decimate(series, BUCKETS, by=by)
    index = index_of(series.role, series.replica)
    values = f" {label_of(points[index])}" if index < len(points) else ""
    return {
        "name": series.name,
        "label": series.place + values,
        "x": [bucket.x for bucket in buckets],
        "last": [finite(bucket.last) for bucket in buckets],
        "low": [finite(bucket.low) for bucket in buckets],
        "high": [finite(bucket.high) for bucket in buckets],
        "value": finite(series.last),
        "step": finite(series.last_step),
        "count": series.count,
    }
