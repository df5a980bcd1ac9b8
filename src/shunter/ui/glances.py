"""What the list says of each job beyond its record: last values of metrics, and why it failed or waits.

It is found out in the background for the jobs that a page shows, and remembered: jobs that have ended are
looked at once. So a list never waits for logs, and its next refresh shows what has been found meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shunter.diagnosis.waiting import explain_waiting
from shunter.errors import ShunterError
from shunter.metrics.last_values import last_values
from shunter.metrics.reader import MetricReader
from shunter.runner import Runner
from shunter.runner.observation import as_recorded
from shunter.runner.records import JobRecord
from shunter.schedulers.registry import SWEEPS
from shunter.specs.status import AppState, is_terminal
from shunter.specs.sweep_points import label_of, points_of
from shunter.ui.runner_pool import RunnerPool
from shunter.ui.sweep_page import PointMetrics
from shunter.why.explanation import explain

#: Jobs that are remembered; seconds after which a job that runs is looked at again, and that a look may take.
MOST_JOBS, AGE, PATIENCE = 5000, 10.0, 30.0
#: Lines of a log in which the last values are.
LINES = 60
#: Points of a sweep up to which all are looked at; of more, as of other jobs, the first.
MOST_POINTS = 16
_WITH_METRICS = (AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED)
_WAITS = (AppState.SUBMITTED, AppState.PENDING)


@dataclass(frozen=True)
class Glance:
    """What the list says of a job.

    Attributes:
        metrics: such as ``step 120, loss 0.31``.
        why: why it failed or waits, in words.
    """

    metrics: str = ""
    why: str = ""


class Glances:
    """Finds out and remembers what the list says of jobs.

    Args:
        pool: calls the runner; each scheduler has a lane for this, which delays nobody else.
    """

    def __init__(self, pool: RunnerPool) -> None:
        self._pool = pool
        self._known: OrderedDict[str, tuple[AppState, float, Glance]] = OrderedDict()
        self._running: dict[str, asyncio.Task[None]] = {}

    async def of(self, records: Sequence[JobRecord], patience: float) -> Mapping[str, Glance]:
        """Return by handle what is known of jobs, after as many seconds at most; the rest is looked for."""
        for record in records:
            if record.handle and record.handle not in self._running and self._is_due(record):
                task = asyncio.create_task(self._look(record))
                self._running[record.handle] = task
                task.add_done_callback(lambda _, handle=record.handle: self._running.pop(handle))  # type: ignore[misc]
        if self._running:
            await asyncio.wait(self._running.values(), timeout=patience)
        handles = [record.handle for record in records if record.handle in self._known]
        return {handle: self._known[handle][2] for handle in handles}

    def _is_due(self, record: JobRecord) -> bool:
        state, looked_at, _ = self._known.get(record.handle, (None, 0.0, None))
        if state is not record.state:
            return True
        return not is_terminal(record.state) and time.monotonic() - looked_at > AGE

    async def _look(self, record: JobRecord) -> None:
        try:
            glance = await self._pool.ask(
                f"list of {record.scheduler}", lambda runner: _glance(runner, record), PATIENCE
            )
        except (
            ShunterError,
            OSError,
            NotImplementedError,
            ValueError,
        ):  # the job's page says more
            glance = Glance()
        self._known[record.handle] = (record.state, time.monotonic(), glance)
        self._known.move_to_end(record.handle)
        while len(self._known) > MOST_JOBS:
            self._known.popitem(last=False)


def _glance(runner: Runner, record: JobRecord) -> Glance:
    why = ""
    if record.state in _WAITS:
        waiting = explain_waiting(as_recorded(record, record.msg))
        why = "" if waiting.kind == "unknown" else waiting.text
    elif record.state is AppState.FAILED:
        status = runner.status(record.handle)
        explanation = None if status is None else explain(runner, record.handle, status)
        if explanation is not None and explanation.failure is not None:
            why = explanation.headline
    return Glance(_last_values(runner, record) if record.state in _WITH_METRICS else "", why)


def _best_point(runner: Runner, record: JobRecord, role: str, points: Sequence[Mapping[str, Any]]) -> str:
    """Return the best of the last values of a sweep's points, and the values of that point."""
    try:
        with MetricReader(runner, record.handle, discovers=True, record=record) as reader:
            reader.read_ends([(role, number) for number in range(len(points))], LINES)
            metrics = PointMetrics.of(reader.by_name())
    except (ShunterError, NotImplementedError, OSError):
        return ""
    lasts = {at: value for at, value in metrics.last.get(metrics.chosen, {}).items() if math.isfinite(value)}
    if not lasts:
        return ""
    best = (min if metrics.order == "min" else max)(lasts, key=lasts.__getitem__)
    return f"best last {metrics.chosen} {lasts[best]:.4g}: {label_of(points[best])}"


def _last_values(runner: Runner, record: JobRecord) -> str:
    """Return the last values of the first replica of the first role that reports any; of a sweep the best."""
    for role in record.app.get("roles") or ():
        points = points_of(role.get("metadata") or {}) if record.scheduler != SWEEPS else []
        if 0 < len(points) <= MOST_POINTS and (best := _best_point(runner, record, role["name"], points)):
            return best
        first = f"{role['name']}/0: " if role["num_replicas"] > 1 else ""
        try:
            with MetricReader(runner, record.handle, discovers=True, record=record) as reader:
                reader.read_ends([(role["name"], 0)], LINES)
                found = last_values(reader.by_name(), reader.definitions)
        except (ShunterError, NotImplementedError, OSError):
            continue
        if found:
            return first + next(iter(found.values()))
    return ""
