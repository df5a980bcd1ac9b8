"""The data of charts: metrics of several jobs, read while they run, and grouped into buckets.

Each job that is looked at has a `MetricReader`, which reads what is new each time. It and its runner are kept
for the jobs that were looked at last.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from shunter.errors import ShunterError, described
from shunter.metrics import Series, decimate
from shunter.metrics.reader import MetricReader
from shunter.metrics.series import finite
from shunter.redaction import redact_text
from shunter.runner import Runner, get_runner
from shunter.ui.runner_pool import NoAnswerError, RunnerPool

MOST_JOBS = 24
BUCKETS = 400
#: Charts of one answer, and lines of each job in one of them.
MOST_CHARTS, MOST_LINES = 60, 8
#: Seconds that an answer waits for a job; what it has not read by then comes with a later one.
PATIENCE = 2.5
LEAST_AGE = 0.5


class WatchedJob:
    """A job whose metrics are read."""

    def __init__(self, handle: str) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._reader: MetricReader | None = None
        self._read_at = 0.0
        self._is_gone = False

    def read(self, _: Runner) -> dict[str, Any] | None:
        """Return the series in buckets, up to now; None while another call reads the log.

        The job has its own runner, so that of the pool is not used.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._reader is None:
                self._reader = MetricReader(get_runner(), self._handle, discovers=True, follow=True)
            reader = self._reader
            if time.monotonic() - self._read_at >= LEAST_AGE:
                reader.update()
                self._read_at = time.monotonic()
            return _in_buckets(reader)
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

    async def read(self, handles: Sequence[str]) -> dict[str, Any]:
        """Return the series of jobs, what is wrong, and whether more will come."""
        series: list[dict[str, Any]] = []
        problems: list[str] = []
        busy, over = False, True
        for handle in dict.fromkeys(handles):
            job = self._watched(handle)
            try:
                found = await self._pool.ask(handle.partition("://")[0], job.read, PATIENCE)
            except NoAnswerError:
                found = None
            except (ShunterError, OSError, NotImplementedError, ValueError) as error:
                problems.append(f"The metrics of {handle} cannot be read: {redact_text(described(error))}")
                continue
            if found is None:
                busy = True
                continue
            prefix = f"{handle.rpartition('/')[2]} " if len(handles) > 1 else ""
            series += [{**one, "label": prefix + one["label"]} for one in found["series"]]
            problems += found["problems"]
            over = over and found["over"]
        return {"series": series, "problems": problems, "busy": busy, "over": over and not busy}

    def _watched(self, handle: str) -> WatchedJob:
        job = self._jobs.pop(handle, None) or WatchedJob(handle)
        self._jobs[handle] = job
        while len(self._jobs) > MOST_JOBS:
            self._jobs.popitem(last=False)[1].stop()
        return job


def _in_buckets(reader: MetricReader) -> dict[str, Any]:
    problems = list(reader.problems)
    names = reader.by_name()
    if len(names) > MOST_CHARTS:
        problems.append(f"{MOST_CHARTS} of {len(names)} metrics are drawn.")
    series = []
    for name in sorted(names)[:MOST_CHARTS]:
        several = names[name]
        if len(several) > MOST_LINES:
            problems.append(f"{name}: {MOST_LINES} of {len(several)} replicas are drawn.")
        series += [_as_line(one) for one in several[:MOST_LINES]]
    return {"series": series, "problems": problems, "over": reader.is_over}


def _as_line(series: Series) -> dict[str, Any]:
    buckets = decimate(series, BUCKETS)
    return {
        "name": series.name,
        "label": series.place,
        "x": [bucket.x for bucket in buckets],
        "last": [finite(bucket.last) for bucket in buckets],
        "low": [finite(bucket.low) for bucket in buckets],
        "high": [finite(bucket.high) for bucket in buckets],
        "value": finite(series.last),
        "step": finite(series.last_step),
        "count": series.count,
    }
