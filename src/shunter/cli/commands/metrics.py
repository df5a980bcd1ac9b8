"""Show the metrics of jobs: the last, minimum and maximum values, several jobs side by side.

Metrics are read from what jobs write anyway: log lines that are JSON objects with numbers and a step, the
metrics of --metric (given here, or when the job was started), TensorBoard event files and Trackio databases
among the results. Of a job with none of these, what looks like metrics in its log is shown: loss=0.31. CPU,
memory and GPU usage on this machine is recorded as system/...
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence

from shunter.cli.console import is_tty, note, out, print_json, table, warn
from shunter.cli.liveview import Screen
from shunter.cli.metricselection import NO_METRICS, JobMetrics, add_selection_options, job_metrics
from shunter.cli.parser import complete_with
from shunter.cli.units import format_bytes
from shunter.errors import EXIT_INTERRUPTED, EXIT_OK
from shunter.metrics.chart import short_number
from shunter.metrics.forwarding import ForwardedMetrics, make_forwarder
from shunter.metrics.series import Series, finite
from shunter.metrics.usage import PREFIX
from shunter.runner import get_runner

#: Seconds between two updates of --watch.
WATCH_INTERVAL = 1.0
_COLUMNS = ("job", "metric", "role", "replica", "rank", "source", "step", "time", "value")


def add_arguments(parser: ArgumentParser) -> None:
    target = parser.add_argument(
        "targets",
        nargs="*",
        metavar="HANDLE[/ROLE[/0,1]]",
        help="jobs (the latest by default), each optionally with a role and replicas",
    )
    complete_with(target, "job_completer")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="METRIC",
        help="only metrics with this name, or that match its * and ?",
    )
    add_selection_options(parser)
    parser.add_argument(
        "--replicas", action="store_true", help="show a line per replica instead of one per metric"
    )
    parser.add_argument(
        "--watch", "-w", action="store_true", help="refresh the table until the jobs have ended"
    )
    parser.add_argument(
        "--format",
        choices=("table", "json", "csv"),
        default="table",
        help="output format; csv and json contain every value",
    )
    parser.add_argument(
        "--forward",
        action="append",
        default=[],
        metavar="NAME[=DESTINATION]",
        help="also send them to tensorboard=DIR, mlflow=URI, or a plugin; may be given several times",
    )
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="the same as --format json"
    )


def run(args: Namespace) -> int:
    with get_runner() as runner:
        jobs = job_metrics(runner, args.targets or ["-"], args, names=args.name, follow=args.watch)
        forwarded = [_forwarded(text) for text in args.forward]
        try:
            _update(jobs)
            _forward(jobs, forwarded)
            if args.watch:
                return _watch(jobs, args, forwarded)
            if args.format == "table":
                for line in _table(jobs, args.replicas):
                    out(line)
            else:
                _print_values(jobs, args.format)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        finally:
            for target in forwarded:
                target.close()
            for job in jobs:
                job.close()
    return EXIT_OK


def _forwarded(text: str) -> ForwardedMetrics:
    return ForwardedMetrics(make_forwarder(text))


def _forward(jobs: Iterable[JobMetrics], forwarded: Iterable[ForwardedMetrics]) -> None:
    for target in forwarded:
        for job in jobs:
            target.send(job.handle, [series for several in job.by_name().values() for series in several])


def _update(jobs: Iterable[JobMetrics]) -> bool:
    is_new = False
    for job in jobs:
        is_new = job.update() or is_new
        for problem in job.new_problems():
            warn(problem)
    return is_new


def _watch(jobs: Sequence[JobMetrics], args: Namespace, forwarded: Sequence[ForwardedMetrics]) -> int:
    screen = Screen(sys.stdout) if args.format == "table" and is_tty(sys.stdout) else None
    shown: list[str] = []
    is_new = True
    try:
        while True:
            if args.format != "table":
                if is_new:
                    _print_values(jobs, args.format, only_new=True)
            else:
                lines = list(_table(jobs, args.replicas))
                if screen is not None:
                    screen.draw(lines)
                elif lines != shown:
                    for line in lines:
                        out(line)
                shown = lines
            if all(job.is_over for job in jobs):
                if screen is not None:
                    screen.finish(shown)
                return EXIT_OK
            time.sleep(WATCH_INTERVAL)
            is_new = _update(jobs)
            _forward(jobs, forwarded)
    except KeyboardInterrupt:
        note("\nno longer watching")
        return EXIT_INTERRUPTED


# ---- as a table


def _table(jobs: Sequence[JobMetrics], by_replica: bool) -> Iterator[str]:
    rows = _compared(jobs) if len(jobs) > 1 else _of_one(jobs[0], by_replica)
    if not rows:
        yield "no metrics so far"
        yield NO_METRICS
        return
    heads: Sequence[str] = ("METRIC", "REPLICAS", "LAST", "MIN", "MAX", "STEP", "VALUES")
    if len(jobs) > 1:
        heads = ["METRIC", "", *(job.label for job in jobs)]
    yield from table(heads, rows).split("\n")


def _of_one(job: JobMetrics, by_replica: bool) -> list[tuple[str, ...]]:
    return [
        (name, _places(group), *_shown(name, group), str(sum(series.count for series in group)))
        for name, several in job.by_name().items()
        for group in ([[each] for each in several] if by_replica else [several])
    ]


def _compared(jobs: Sequence[JobMetrics]) -> list[tuple[str, ...]]:
    found = [job.by_name() for job in jobs]
    rows: list[tuple[str, ...]] = []
    for name in dict.fromkeys(name for each in found for name in each):
        columns = [_shown(name, each[name]) if name in each else ["-"] * 4 for each in found]
        for index, what in enumerate(("last", "min", "max", "step")):
            rows.append((name if not index else "", what, *(column[index] for column in columns)))
    return rows


def _shown(name: str, group: Sequence[Series]) -> list[str]:
    """Return a `_summary` as text; what replicas use of memory, storage and network has units."""
    *values, step = _summary(group)
    if name.startswith(PREFIX) and name.endswith("_bytes"):
        shown = [format_bytes(value) for value in values]
    elif name.startswith(PREFIX) and name.endswith("_per_second"):
        shown = [f"{format_bytes(value)}/s" for value in values]
    else:
        shown = [short_number(value) for value in values]
    return [*shown, short_number(step)]


def _summary(group: Sequence[Series]) -> tuple[float, float, float, float]:
    """Return the last value (the mean of several replicas), the least, the greatest, and the last step."""

    def defined(values: Iterable[float]) -> list[float]:
        return [value for value in values if not math.isnan(value)]

    lasts = [series.last for series in group]
    return (
        math.fsum(lasts) / len(lasts) if all(map(math.isfinite, lasts)) else lasts[0],
        min(defined(series.least for series in group), default=math.nan),
        max(defined(series.greatest for series in group), default=math.nan),
        max(defined(series.last_step for series in group), default=math.nan),
    )


def _places(group: Sequence[Series]) -> str:
    """Return the replicas of some series: ``trainer/0``, or ``trainer (mean of 4)``."""
    if len(group) == 1:
        return group[0].place
    roles = ", ".join(dict.fromkeys(series.role for series in group))
    return f"{roles} (mean of {len(group)})"


# ---- every value


def _print_values(jobs: Sequence[JobMetrics], form: str, *, only_new: bool = False) -> None:
    if form == "json":
        found = {
            job.handle: {name: [s.to_json() for s in several] for name, several in job.by_name().items()}
            for job in jobs
        }
        if only_new:
            out(json.dumps(found))
        else:
            print_json(found)
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if not only_new or not any(job.printed for job in jobs):
        writer.writerow(_COLUMNS)
    for job in jobs:
        for series in [each for several in job.by_name().values() for each in several]:
            writer.writerows(_csv_rows(job, series, only_new))
    if text.getvalue():
        out(text.getvalue().rstrip("\n"))


def _csv_rows(job: JobMetrics, series: Series, only_new: bool) -> Iterator[tuple[object, ...]]:
    key = (series.name, series.role, series.replica, series.rank, series.source)
    points = series.points_after(job.printed.get(key, 0) if only_new else 0)
    job.printed[key] = series.count
    for step, moment, value in points:
        when = "" if finite(moment) is None else f"{moment:.3f}"
        number = finite(value)
        yield (job.handle, *key, finite(step), when, value if number is None else number)
