"""Values of one metric over steps and time: kept in bounded memory, cut into buckets for charts."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from shunter.specs.sweep_points import index_of

#: Where values come from.
LOG, TENSORBOARD, TRACKIO, CSV, USAGE = "log", "tensorboard", "trackio", "csv", "usage"

#: A series with more points is thinned to half of them.
MOST_POINTS = 16_384
#: Thinning keeps the smallest and the largest of this many neighbouring points.
_GROUP = 4
#: Job output is not trusted: larger steps, and times after the year 9999, are treated as unknown.
_GREATEST_STEP, _LATEST_TIME = 2.0**63, 253_402_300_799.0


class Series:
    """The values of a metric that one replica reported, in the order in which it did.

    Of very many values the extremes of each neighbourhood are kept; ``count``, ``least``, ``greatest`` and
    the last value are those of all. Steps go back where a job was restarted from a checkpoint, see
    `progress`.

    Args:
        name: the metric.
        role: name of the replica's role.
        replica: its index.
        rank: the process among several that write one log, as the prefix of its lines says; "" for one.
        source: LOG, TENSORBOARD, TRACKIO, CSV or USAGE.

    Attributes:
        steps: the step of each value; where the job tells none, the number of the value from 0.
        times: seconds since the epoch, nan where unknown.
        values: the values; nan and infinities are values too.
        counts_values: whether the steps are just the indices of the values.
    """

    def __init__(self, name: str, role: str, replica: int, rank: str = "", source: str = LOG) -> None:
        self.name, self.role, self.replica, self.rank, self.source = name, role, replica, rank, source
        self.steps, self.times, self.values = array("d"), array("d"), array("d")
        self.count = 0
        self.least = math.nan
        self.greatest = math.nan
        self.counts_values = True

    def __repr__(self) -> str:
        return f"Series({self.name!r} of {self.place}: {self.count} values)"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def place(self) -> str:
        """Its replica as users write it, with the rank if there is one."""
        return f"{self.role}/{self.replica}" + (f" rank {self.rank}" if self.rank else "")

    @property
    def last(self) -> float:
        """The last value; nan without any."""
        return self.values[-1] if self.values else math.nan

    @property
    def last_step(self) -> float:
        """The step of the last value; nan without any."""
        return self.steps[-1] if self.steps else math.nan

    @property
    def last_time(self) -> float:
        """The time of the last value, in seconds since the epoch; nan if unknown."""
        return self.times[-1] if self.times else math.nan

    def add(self, value: float, step: float | None = None, time: float = math.nan) -> None:
        """Append a value."""
        if step is None:
            step = float(self.count)
        else:
            self.counts_values = False
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)
        self.count += 1
        if not self.least <= value and not math.isnan(value):
            self.least = value
        if not self.greatest >= value and not math.isnan(value):
            self.greatest = value
        if len(self.values) > MOST_POINTS:
            self._keep(_thinned(self.values))

    def _keep(self, indices: Sequence[int]) -> None:
        for name in ("steps", "times", "values"):
            old = getattr(self, name)
            setattr(self, name, array("d", [old[index] for index in indices]))

    def setbacks(self) -> int:
        """Return how many times the steps go back."""
        return sum(1 for before, after in zip(self.steps, self.steps[1:], strict=False) if after < before)

    def progress(self, restarts: int) -> Series:
        """Return the series without values that restarts have superseded.

        A job that is restarted repeats the steps since its checkpoint. Where the steps go back more often
        than the job was restarted, the job counts them per epoch or the like: then all is kept.
        """
        setbacks = self.setbacks()
        if not setbacks or setbacks > restarts:
            return self
        kept: list[int] = []
        for index, step in enumerate(self.steps):
            while kept and self.steps[kept[-1]] >= step:
                kept.pop()
            kept.append(index)
        return self._part(kept)

    def since(self, time: float) -> Series:
        """Return the values from this time on."""
        return self._part(index for index, moment in enumerate(self.times) if moment >= time)

    def _part(self, indices: Iterable[int]) -> Series:
        result = Series(self.name, self.role, self.replica, self.rank, self.source)
        for index in indices:
            result.add(self.values[index], self.steps[index], self.times[index])
        result.counts_values = self.counts_values
        return result

    def points_after(self, count: int) -> list[tuple[float, float, float]]:
        """Return step, time and value of those that follow the first ``count``, as far as they are kept."""
        first = max(len(self) - (self.count - count), 0)
        return list(zip(self.steps[first:], self.times[first:], self.values[first:], strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values; null stands for nan and infinities."""
        return {
            "name": self.name,
            "role": self.role,
            "replica": self.replica,
            "rank": self.rank,
            "source": self.source,
            "count": self.count,
            "last": finite(self.last),
            "min": finite(self.least),
            "max": finite(self.greatest),
            "step": finite(self.last_step),
            "steps": [finite(step) for step in self.steps],
            "times": [finite(time) for time in self.times],
            "values": [finite(value) for value in self.values],
        }


def select(
    metrics: Mapping[str, Sequence[Series]],
    patterns: Sequence[str] = (),
    replicas: Sequence[tuple[str, frozenset[int] | None]] = (),
    since: float | None = None,
) -> dict[str, list[Series]]:
    """Return a part of the metrics of a job, without series that have no values there.

    Args:
        metrics: by name the series of each replica.
        patterns: names, or patterns with ``*`` and ``?``; empty for all.
        replicas: roles, each with indices or None for all of the role; empty for all roles.
        since: only values from this time on, in seconds since the epoch; None for all.
    """
    chosen = {}
    for name, several in metrics.items():
        if patterns and not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        series = [
            each
            for each in several
            if not replicas
            or any(each.role == role and (ids is None or each.replica in ids) for role, ids in replicas)
        ]
        if since is not None:
            series = [later for each in series if len(later := each.since(since))]
        if series:
            chosen[name] = series
    return chosen


def summary(group: Sequence[Series]) -> tuple[float, float, float, float]:
    """Return the last value (the mean of several series), the least, the greatest, and the last step."""

    def defined(values: Iterable[float]) -> list[float]:
        return [value for value in values if not math.isnan(value)]

    lasts = [series.last for series in group]
    return (
        math.fsum(lasts) / len(lasts) if all(map(math.isfinite, lasts)) else lasts[0],
        min(defined(series.least for series in group), default=math.nan),
        max(defined(series.greatest for series in group), default=math.nan),
        max(defined(series.last_step for series in group), default=math.nan),
    )


def rank(series: Series, order: str) -> float:
    """Return the best value of a series as a key for sorting, the best first; ``order`` is min or max."""
    value = series.least if order == "min" else -series.greatest
    return value if math.isfinite(value) else math.inf


def best_by_point(several: Iterable[Series], order: str) -> dict[int, float]:
    """Return the best value of each point of a sweep that has reported any, by its index, the best first."""
    values: dict[int, float] = {}
    for series in sorted(several, key=lambda series: rank(series, order)):
        if math.isfinite(rank(series, order)):
            best = series.least if order == "min" else series.greatest
            values.setdefault(index_of(series.role, series.replica), best)
    return values


def finite(value: float) -> float | int | None:
    """Return a number as JSON has it: whole ones without a point, None for nan and infinities."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 2**53 else value


def _thinned(values: Sequence[float]) -> list[int]:
    """Return the indices of the least and the greatest of each few values, and of the last value."""
    kept = []
    for start in range(0, len(values), _GROUP):
        group = range(start, min(start + _GROUP, len(values)))
        numbers = [index for index in group if not math.isnan(values[index])] or [group[0]]
        kept += sorted({min(numbers, key=values.__getitem__), max(numbers, key=values.__getitem__)})
    if kept[-1] != len(values) - 1:
        kept.append(len(values) - 1)
    return kept


@dataclass
class Bucket:
    """The values of a series between two places on the axis.

    Args:
        x: the place of the last of them: a step, or a time in seconds since the epoch.
        low: the least.
        high: the greatest.
        last: the last.
        count: how many there are.
    """

    x: float
    low: float
    high: float
    last: float
    count: int


def decimate(
    series: Series,
    buckets: int,
    *,
    by: str = "step",
    start: float | None = None,
    end: float | None = None,
) -> list[Bucket]:
    """Cut a series into at most this many buckets of equal width; empty ones are left out.

    Args:
        series: the series. Give what `Series.progress` returns where a job was restarted.
        buckets: how many.
        by: "step" or "time".
        start: where the first bucket begins; by default at the first value.
        end: where the last one ends; by default at the last value.
    """
    places = series.times if by == "time" else series.steps
    points = [
        (x, value)
        for x, value in zip(places, series.values, strict=True)
        if not math.isnan(x)
        and not math.isnan(value)
        and (start is None or x >= start)
        and (end is None or x <= end)
    ]
    if not points or buckets < 1:
        return []
    low = min(x for x, _ in points) if start is None else start
    high = max(x for x, _ in points) if end is None else end
    width = (high - low) / buckets or 1.0
    found: dict[int, Bucket] = {}
    for x, value in points:
        number = min(int((x - low) / width), buckets - 1)
        bucket = found.get(number)
        if bucket is None:
            found[number] = Bucket(x, value, value, value, 1)
            continue
        bucket.x, bucket.last = x, value
        bucket.low, bucket.high = min(bucket.low, value), max(bucket.high, value)
        bucket.count += 1
    return [found[number] for number in sorted(found)]


class MetricTable:
    """Series by metric name, and for each name by replica; only of ``names``, unless that is None."""

    #: No more series than this are kept: so many different names cannot be names of metrics.
    MOST_SERIES = 5_000

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)
        self._series: dict[tuple[str, str, int, str, str], Series] = {}
        #: Whether there were more than `MOST_SERIES`.
        self.is_full = False

    def wants(self, name: str) -> bool:
        """Tell whether a metric is asked for."""
        return self._names is None or name in self._names

    def add(
        self,
        name: str,
        place: tuple[str, int],
        value: float,
        step: float | None = None,
        time: float = math.nan,
        *,
        rank: str = "",
        source: str = LOG,
    ) -> None:
        """Add a value of a replica."""
        if not self.wants(name):
            return
        key = (name, *place, rank, source)
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= self.MOST_SERIES:
                self.is_full = True
                return
            series = self._series[key] = Series(name, *place, rank, source)
        if step is not None and not abs(step) <= _GREATEST_STEP:
            step = None
        series.add(value, step, time if 0 <= time <= _LATEST_TIME else math.nan)

    def __iter__(self) -> Iterator[Series]:
        return iter(self._series.values())

    def by_name(self) -> dict[str, list[Series]]:
        """Return the series of each metric, in the order in which the metrics were first seen."""
        found: dict[str, list[Series]] = {}
        for series in list(self._series.values()):
            found.setdefault(series.name, []).append(series)
        for several in found.values():
            several.sort(key=lambda each: (each.role, each.replica, each.rank.zfill(6), each.source))
        return found
