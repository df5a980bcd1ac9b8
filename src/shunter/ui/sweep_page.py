"""Points of a sweep, or jobs that are compared: a table of values, states, metrics; parallel coordinates."""

from __future__ import annotations

import copy
import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import htpy as h

from shunter.metrics.series import Series, best_by_point
from shunter.metrics.usage import PREFIX
from shunter.redaction import Redactor
from shunter.runner.changed_arguments import named_words
from shunter.runner.records import JobRecord
from shunter.specs.sweep_points import index_of
from shunter.terminal import clean, format_duration
from shunter.ui.html_parts import Parts, badge, drawing, url

#: Points and metrics of a table, and points that are drawn.
MOST_POINTS, MOST_METRICS, MOST_DRAWN = 2000, 6, 500
#: Metrics of which the lowest is best, unless the page's URL says otherwise.
_LOWEST_IS_BEST = re.compile(r"loss|err|mse|mae|perplexity|ppl|nll|time|seconds|latency", re.IGNORECASE)
WIDTH, HEIGHT, MARGIN, LABELS = 900.0, 240.0, 70.0, 26.0
#: Values of which the largest is this many times the smallest are drawn on a logarithmic axis.
_MANY_TIMES = 50.0


@dataclass(frozen=True)
class PointMetrics:
    """Metrics of a sweep by name: of each point the last value, and the best first.

    Attributes:
        last: by name, by index of the point, the last value.
        chosen: the metric by which the points are sorted; "" without any.
        order: whether its lowest (``min``) or highest (``max``) value is best.
        best: the best value of each point, the best point first.
    """

    last: Mapping[str, Mapping[int, float]]
    chosen: str
    order: str
    best: Mapping[int, float]

    @classmethod
    def of(cls, metrics: Mapping[str, Sequence[Series]], chosen: str = "", order: str = "") -> PointMetrics:
        """Return what is shown of these metrics."""
        metrics = {name: some for name, some in metrics.items() if not name.startswith(PREFIX)}
        if chosen not in metrics:
            chosen = min(metrics, key=lambda name: (name != "loss", "loss" not in name), default="")
        if order not in ("min", "max"):
            order = "min" if _LOWEST_IS_BEST.search(chosen) else "max"
        names = list(metrics)[:MOST_METRICS]
        names += [chosen] if chosen and chosen not in names else []
        last = {
            name: {index_of(each.role, each.replica): each.last for each in metrics[name]} for name in names
        }
        return cls(last, chosen, order, best_by_point(metrics.get(chosen, []), order))

    @classmethod
    def of_jobs(cls, jobs: Sequence[Mapping[str, Sequence[Series]]], chosen: str, order: str) -> PointMetrics:
        """Return the metrics of several jobs, each of which counts as a point."""
        metrics: dict[str, list[Series]] = {}
        for number, by_name in enumerate(jobs):
            for name, several in by_name.items():
                for series in map(copy.copy, several):
                    series.role, series.replica = "job", number
                    metrics.setdefault(name, []).append(series)
        return cls.of(metrics, chosen, order)


def differing_values(records: Sequence[JobRecord]) -> list[dict[str, str]]:
    """Return by name the values of each job's arguments in which the jobs differ."""
    redactor = Redactor()
    every = [named_words(_words(record.arguments)) for record in records]
    names = dict.fromkeys(name for values in every for name in values)
    differing = [name for name in names if len({values.get(name) for values in every}) > 1]
    return [{name: redactor.named(name, values.get(name, "")) for name in differing} for values in every]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # it is text, not words
        return text.split()


def job_rows(records: Sequence[JobRecord]) -> list[dict[str, Any]]:
    """Return jobs as rows of a table of points."""
    return [
        {
            "point": number,
            "replica": record.app_id,
            "link": url("/job", handle=record.handle),
            "values": values,
            "state": record.state.name,
            "reason": record.msg,
            "seconds": record.started_at and (record.ended_at or time.time()) - record.started_at,
        }
        for number, (record, values) in enumerate(zip(records, differing_values(records), strict=True))
    ]


def points_part(
    parts: Parts,
    page: str,
    part: str,
    rows: Sequence[dict[str, Any]],
    metrics: PointMetrics | None,
    *,
    over: bool,
    first: str = "Point",
) -> h.Element:
    """Return points, the best first; the part reloads itself until all have ended.

    Args:
        page, part: the URLs of the page and of this part alone.
        metrics: None as long as they are being read.
        over: whether all have ended.
        first: the head of the first column.
    """
    busy = metrics is None
    metrics = metrics or PointMetrics({}, "", "min", {})
    refreshes = busy or not over
    place = {index: number for number, index in enumerate(metrics.best)}
    rows = sorted(rows, key=lambda row: (place.get(row["point"], len(rows)), row["point"]))
    redactor = Redactor()
    for row in rows:
        row["values"] = {name: redactor.named(name, text) for name, text in row["values"].items()}
    return h.section(
        "#points",
        parts.htmx(get=part, trigger="refresh", swap="outerHTML") if refreshes else {},
        data_refresh=("700" if busy else "3000") if refreshes else None,
    )[
        h.p(".note")["Reading the metrics …"] if busy else None,
        _coordinates(rows[:MOST_DRAWN], metrics) if metrics.best else None,
        _table(page, rows[:MOST_POINTS], metrics, first),
        h.p(".note")[f"{MOST_POINTS} of {len(rows)} points are shown."] if len(rows) > MOST_POINTS else None,
    ]


def _sorted_by(page: str, metric: str, order: str | None) -> str:
    query = {name: value for name, value in (("metric", metric), ("order", order)) if value}
    return f"{page}&{urlencode(query, errors='replace')}" if query else page


def _table(page: str, rows: Sequence[dict[str, Any]], metrics: PointMetrics, first: str) -> h.Element:
    names = list(rows[0]["values"])
    heads: list[h.Node] = [h.th(scope="col")[text] for text in (first, "State", *map(clean, names))]
    for name in metrics.last:
        is_chosen = name == metrics.chosen
        other = {"min": "max", "max": "min"}[metrics.order] if is_chosen else None
        words = {"min": "lowest ", "max": "highest "}[metrics.order] if is_chosen else ""
        heads.append(
            h.th(
                scope="col", aria_sort=("ascending" if metrics.order == "min" else "descending") * is_chosen
            )[h.a(href=_sorted_by(page, name, other))[words + clean(name)]]
        )
    best = next(iter(metrics.best), None)
    return h.table(".jobs.points")[
        h.thead[h.tr[heads, h.th(scope="col")["Time"], h.th(scope="col")["Reason"]]],
        h.tbody[[_row(row, metrics, is_best=row["point"] == best) for row in rows]],
    ]


def _row(row: Mapping[str, Any], metrics: PointMetrics, *, is_best: bool) -> h.Element:
    index = row["point"]
    seconds = "-" if row["seconds"] is None else format_duration(row["seconds"])
    return h.tr(class_="best" if is_best else None, data_row=True)[
        h.td(".name")[
            h.a(href=row["link"])[clean(row["replica"])],
            h.b(".mark")[" best"] if is_best else None,
        ],
        h.td[badge(row["state"])],
        [h.td(".number")[clean(str(text))] for text in row["values"].values()],
        [
            h.td(".number")[shown_number((metrics.best if name == metrics.chosen else values).get(index))]
            for name, values in metrics.last.items()
        ],
        h.td(".time")[seconds],
        h.td(".reason")[clean(row["reason"] or "")[:160]],
    ]


def shown_number(value: float | None) -> str:
    """Return a value of a metric as a cell of the table."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:.5g}"


# ---- parallel coordinates


class Axis:
    """An axis of parallel coordinates: numbers from low to high, or words one above the other.

    Args:
        name: what it shows.
        texts: the values of all points.
    """

    def __init__(self, name: str, texts: Sequence[str]) -> None:
        self.name = name
        self._words = list(dict.fromkeys(texts))
        numbers = [_as_number(text) for text in texts]
        self._numbers = sorted({each for each in numbers if each is not None})
        self._is_numeric = None not in numbers and len(self._numbers) > 1
        low, high = (self._numbers[0], self._numbers[-1]) if self._is_numeric else (0.0, 1.0)
        self._is_log = self._is_numeric and low > 0 and high / low >= _MANY_TIMES

    def y(self, text: str) -> float:
        """Return where a value is."""
        return LABELS + (HEIGHT - 2 * LABELS) * (1 - self.share(text))

    def share(self, text: str) -> float:
        """Return where a value is between 0, the lowest, and 1."""
        if not self._is_numeric:
            return self._words.index(text) / max(len(self._words) - 1, 1) if len(self._words) > 1 else 0.5
        scale = math.log if self._is_log else float
        low, value, high = (scale(each) for each in (self._numbers[0], float(text), self._numbers[-1]))
        return (value - low) / (high - low)

    @property
    def labels(self) -> list[str]:
        """The values that are written beside it."""
        if not self._is_numeric:
            return self._words if len(self._words) <= 12 else [self._words[0], self._words[-1]]
        few = self._numbers if len(self._numbers) <= 6 else [self._numbers[0], self._numbers[-1]]
        return [f"{each:.12g}" for each in few]


def _as_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _coordinates(rows: Sequence[dict[str, Any]], metrics: PointMetrics) -> h.Element | None:
    """Draw a line for each point through its values to its metric; the best ones are drawn last.

    Returns None where the points do not differ.
    """
    shown = [row for row in rows if row["point"] in metrics.best][::-1]
    names = [name for name in rows[0]["values"] if len({row["values"].get(name) for row in shown}) > 1]
    if not names:
        return None
    axes = [Axis(name, [str(row["values"].get(name, "")) for row in shown]) for name in names]
    result = Axis(metrics.chosen, [repr(metrics.best[row["point"]]) for row in shown])
    axes.append(result)
    step = (WIDTH - 2 * MARGIN) / max(len(axes) - 1, 1)
    lines: list[h.Node] = []
    for number, row in enumerate(shown):
        value = metrics.best[row["point"]]
        texts = [*(str(row["values"].get(name, "")) for name in names), repr(value)]
        places = [f"{MARGIN + at * step:.1f},{axis.y(texts[at]):.1f}" for at, axis in enumerate(axes)]
        goodness = number / max(len(shown) - 1, 1)
        title = " ".join(f"{name}={text}" for name, text in row["values"].items())
        lines.append(
            drawing(
                "polyline",
                points=" ".join(places),
                stroke=f"hsl({210 - 180 * (1 - goodness):.0f} 70% 50%)",
                class_="best" if number == len(shown) - 1 else None,
            )[drawing("title")[clean(f"{title}: {metrics.chosen} {value:.5g}")]]
        )
    return h.figure(".coordinates")[
        h.figcaption[
            clean(f"{metrics.chosen} by value"),
            h.small[" blue is best; the pointer on a line shows its point"],
        ],
        drawing(
            "svg", viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", role="img", aria_label="Parallel coordinates"
        )[lines, [_axis(axis, MARGIN + at * step) for at, axis in enumerate(axes)]],
    ]


def _axis(axis: Axis, x: float) -> h.Node:
    return drawing("g")[
        drawing("line", x1=x, x2=x, y1=LABELS, y2=HEIGHT - LABELS),
        drawing("text", x=x, y=HEIGHT - 6, text_anchor="middle", class_="axis-name")[clean(axis.name[:24])],
        [
            drawing("text", x=x + 5, y=axis.y(text) + 4)[clean(text if len(text) < 9 else _short(text))]
            for text in axis.labels
        ],
    ]


def _short(text: str) -> str:
    number = _as_number(text)
    return text[:12] + "…" if number is None else f"{number:.4g}"
