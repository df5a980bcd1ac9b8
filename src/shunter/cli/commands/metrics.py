"""Show the metrics of jobs: the last, minimum and maximum values, several jobs side by side.

Metrics are read from what jobs write anyway: log lines that are JSON objects with numbers and a step, the
metrics of --metric (given here, or when the job was started), TensorBoard event files and Trackio databases
among the results. Of a job with none of these, what looks like metrics in its log is shown: loss=0.31. CPU,
memory and GPU usage on this machine is recorded as system/...
"""

from __future__ import annotations

import contextlib
import csv
import io
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence

from shunter.cli.console import Screen, is_tty, out, print_json, table
from shunter.cli.interrupts import interrupt_message
from shunter.cli.metric_selection import NO_METRICS, JobMetrics, add_metric_options, job_metrics
from shunter.cli.units import format_bytes
from shunter.errors import EXIT_OK
from shunter.metrics.chart import short_number
from shunter.metrics.forwarding import ForwardedMetrics, make_forwarder
from shunter.metrics.series import Series, finite, summary
from shunter.metrics.usage import PREFIX
from shunter.runner import get_runner

#: Seconds between two updates of --watch.
WATCH_INTERVAL = 1.0
_COLUMNS = ("job", "metric", "role", "replica", "rank", "source", "step", "time", "value")


def add_arguments(parser: ArgumentParser) -> None:
    add_metric_options(parser, "jobs (the latest by default), each optionally with a role and replicas")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="METRIC",
        help="only metrics with this name, or that match its * and ?",
    )
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
    with (
        get_runner() as runner,
        job_metrics(runner, args, patterns=args.name, follow=args.watch) as jobs,
        contextlib.ExitStack() as stack,
    ):
        forwarded = [
            stack.enter_context(contextlib.closing(ForwardedMetrics(make_forwarder(text))))
            for text in args.forward
        ]
        _update(jobs, forwarded)
        if args.watch:
            with interrupt_message("no longer watching"):
                _watch(jobs, args, forwarded)
        if args.format == "json":
            print_json(_all_values(jobs))
        elif args.format == "csv":
            out(_as_csv(jobs))
        elif not args.watch:
            out("\n".join(_table(jobs, args.replicas)))
    return EXIT_OK


def _update(jobs: Iterable[JobMetrics], forwarded: Iterable[ForwardedMetrics]) -> None:
    for job in jobs:
        job.update()
        for target in forwarded:
            target.send(job.handle, list(job.series()))


def _watch(jobs: Sequence[JobMetrics], args: Namespace, forwarded: Sequence[ForwardedMetrics]) -> None:
    """Read until the jobs have ended; show the table whenever it changes, redrawn on a terminal."""
    screen = Screen(sys.stdout) if args.format == "table" and is_tty(sys.stdout) else None
    lines: list[str] = []
    while True:
        before, lines = lines, _table(jobs, args.replicas)
        is_over = all(job.is_over for job in jobs)
        if screen is not None:
            (screen.finish if is_over else screen.draw)(lines)
        elif args.format == "table" and lines != before:
            out("\n".join(lines))
        if is_over:
            return
        time.sleep(WATCH_INTERVAL)
        _update(jobs, forwarded)


# ---- as a table


def _table(jobs: Sequence[JobMetrics], by_replica: bool) -> list[str]:
    rows = _compared(jobs) if len(jobs) > 1 else _of_one(jobs[0], by_replica)
    if not rows:
        return ["no metrics so far", NO_METRICS]
    heads: Sequence[str] = ("METRIC", "REPLICAS", "LAST", "MIN", "MAX", "STEP", "VALUES")
    if len(jobs) > 1:
        heads = ["METRIC", "", *(job.label for job in jobs)]
    return table(heads, rows).split("\n")


def _of_one(job: JobMetrics, by_replica: bool) -> list[tuple[str, ...]]:
    return [
        (name, _places(group), *_shown(name, group), str(sum(series.count for series in group)))
        for name, several in job.by_name().items()
        for group in ([[series] for series in several] if by_replica else [several])
    ]


def _compared(jobs: Sequence[JobMetrics]) -> list[tuple[str, ...]]:
    columns = [{name: _shown(name, group) for name, group in job.by_name().items()} for job in jobs]
    return [
        ("" if index else name, what, *(column[name][index] if name in column else "-" for column in columns))
        for name in dict.fromkeys(name for column in columns for name in column)
        for index, what in enumerate(("last", "min", "max", "step"))
    ]


def _shown(name: str, group: Sequence[Series]) -> list[str]:
    """Return the summary as text; what replicas use of memory, storage and network has units."""
    *values, step = summary(group)
    if name.startswith(PREFIX) and name.endswith("_bytes"):
        texts = [format_bytes(value) for value in values]
    elif name.startswith(PREFIX) and name.endswith("_per_second"):
        texts = [f"{format_bytes(value)}/s" for value in values]
    else:
        texts = [short_number(value) for value in values]
    return [*texts, short_number(step)]


def _places(group: Sequence[Series]) -> str:
    """Return the replicas of some series: ``trainer/0``, or ``trainer (mean of 4)``."""
    if len(group) == 1:
        return group[0].place
    roles = ", ".join(dict.fromkeys(series.role for series in group))
    return f"{roles} (mean of {len(group)})"


# ---- every value


def _all_values(jobs: Iterable[JobMetrics]) -> dict[str, dict[str, list[dict[str, object]]]]:
    return {
        job.handle: {name: [s.to_json() for s in several] for name, several in job.by_name().items()}
        for job in jobs
    }


def _as_csv(jobs: Iterable[JobMetrics]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for job in jobs:
        for series in job.series():
            place = (job.handle, series.name, series.role, series.replica, series.rank, series.source)
            for step, moment, value in series.points_after(0):
                when = "" if finite(moment) is None else f"{moment:.3f}"
                number = finite(value)
                writer.writerow([*place, finite(step), when, value if number is None else number])
    return text.getvalue().rstrip("\n")
