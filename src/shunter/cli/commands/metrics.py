"""Show the metrics of jobs: the last, minimum and maximum values, several jobs side by side.

Metrics are read from what jobs write anyway: log lines that are JSON objects with numbers and a step, the
metrics of --metric (given here, or when the job was started), TensorBoard event files, Trackio databases and
CSV files among the results. Of a job with none of these, what looks like metrics in its log is shown:
loss=0.31. CPU, memory and GPU usage is recorded as system/...; the last lines compare it with what was asked.
"""

from __future__ import annotations

import contextlib
import csv
import io
import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence

from shunter.cli.console import Screen, format_bytes, interrupt_message, is_tty, out, print_json, table
from shunter.cli.metric_selection import NO_METRICS, JobMetrics, add_metric_options, job_metrics
from shunter.cli.parser import Parser
from shunter.errors import UnknownAppException
from shunter.metrics.chart import short_number
from shunter.metrics.forwarding import ForwardedMetrics, make_forwarder
from shunter.metrics.series import Series, finite, summary
from shunter.metrics.usage import PREFIX
from shunter.runner import get_runner
from shunter.runner.resource_use import use_lines
from shunter.terminal import clean

#: Seconds between two updates of --watch.
WATCH_INTERVAL = 1.0
_COLUMNS = ("job", "metric", "role", "replica", "rank", "source", "step", "time", "value")


def add_arguments(parser: Parser) -> None:
    add_metric_options(parser, "jobs (the latest by default), each optionally with a role and replicas")
    parser.add_repeated(
        "--name", metavar="METRIC", help="only metrics with this name, or that match its * and ?"
    )
    parser.add_flag("--replicas", help="show a line per replica instead of one per metric")
    parser.add_flag("--watch", "-w", help="refresh the table until the jobs have ended")
    parser.add_argument(
        "--format",
        choices=("table", "json", "csv"),
        default="table",
        help="output format; csv and json contain every value",
    )
    parser.add_repeated(
        "--forward",
        metavar="NAME[=DESTINATION]",
        help="also send them to tensorboard=DIR, mlflow=URI, or a plugin",
    )
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="the same as --format json"
    )


def run(args: Namespace) -> None:
    with (
        get_runner() as runner,
        _naming_metrics(args),
        job_metrics(runner, args, args.name, follow=args.watch) as jobs,
        contextlib.ExitStack() as stack,
    ):
        forwarded = [ForwardedMetrics(make_forwarder(text)) for text in args.forward]
        for target in forwarded:
            stack.callback(target.close)
        with interrupt_message("no longer watching") if args.watch else contextlib.nullcontext():
            _read(jobs, args, forwarded)
        if args.format == "json":
            print_json(
                {
                    job.handle: {name: [s.to_json() for s in several] for name, several in metrics.items()}
                    for job, metrics in ((job, job.by_name(args.name)) for job in jobs)
                }
            )
        elif args.format == "csv":
            out(_as_csv(jobs, args.name))
        elif not args.name:
            for job in jobs:
                for text in use_lines(runner, job.handle):
                    out(f"Resources of {clean(text if len(jobs) == 1 else f'{job.label} {text}')}")


@contextlib.contextmanager
def _naming_metrics(args: Namespace) -> Iterator[None]:
    """Where an argument does not name a job, add to the error how to name a metric."""
    try:
        yield
    except UnknownAppException as error:
        *jobs, name = args.targets or [""]
        if repr(name) in error.message and "/" not in name:
            line = shlex.join(["shunter", "metrics", *jobs, "--name", name])
            error.hint += f"\nFor the metric {name}: {line}"
        raise


def _read(jobs: Sequence[JobMetrics], args: Namespace, forwarded: Sequence[ForwardedMetrics]) -> None:
    """Read and forward the metrics, with --watch until the jobs have ended; show the table as it changes."""
    screen = Screen(sys.stdout) if args.watch and is_tty(sys.stdout) else None
    lines: list[str] = []
    while True:
        for job in jobs:
            job.update()
            for target in forwarded:
                target.send(job.handle, [s for several in job.by_name(args.name).values() for s in several])
        before, lines = lines, _table(jobs, args)
        is_over = not args.watch or all(job.is_over for job in jobs)
        if args.format == "table":
            if screen is not None:
                (screen.finish if is_over else screen.draw)(lines)
            elif lines != before:
                out("\n".join(lines))
        if is_over:
            return
        time.sleep(WATCH_INTERVAL)


def _table(jobs: Sequence[JobMetrics], args: Namespace) -> list[str]:
    metrics = [job.by_name(args.name) for job in jobs]
    heads: Sequence[str] = ("METRIC", "REPLICAS", "LAST", "MIN", "MAX", "STEP", "VALUES")
    if len(jobs) > 1:
        heads = ("METRIC", "", *(job.label for job in jobs))
        columns = [{name: _shown(name, group) for name, group in by_name.items()} for by_name in metrics]
        rows = [
            [name if index == 0 else "", what, *(column.get(name, ["-"] * 4)[index] for column in columns)]
            for name in dict.fromkeys(name for column in columns for name in column)
            for index, what in enumerate(("last", "min", "max", "step"))
        ]
    else:
        rows = [
            [name, _places(group), *_shown(name, group), str(sum(series.count for series in group))]
            for name, several in metrics[0].items()
            for group in ([[series] for series in several] if args.replicas else [several])
        ]
    return table(heads, rows).split("\n") if rows else ["no metrics so far", NO_METRICS]


def _shown(name: str, group: Sequence[Series]) -> list[str]:
    """Return last, least, greatest value and step; what replicas use of memory and network has units."""
    *values, step = summary(group)
    is_usage = name.startswith(PREFIX)
    if is_usage and name.endswith(("_bytes", "_per_second")):
        unit = "/s" if name.endswith("_per_second") else ""
        texts = [f"{format_bytes(value)}{unit}" for value in values]
    else:
        texts = [short_number(value) for value in values]
    return [*texts, short_number(step)]


def _places(group: Sequence[Series]) -> str:
    """Return the replicas of some series: ``trainer/0``, or ``trainer (mean of 4)``."""
    if len(group) == 1:
        return group[0].place
    roles = ", ".join(dict.fromkeys(series.role for series in group))
    return f"{roles} (mean of {len(group)})"


def _as_csv(jobs: Sequence[JobMetrics], patterns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for job in jobs:
        for series in (series for several in job.by_name(patterns).values() for series in several):
            place = (job.handle, series.name, series.role, series.replica, series.rank, series.source)
            for step, moment, value in series.points_after(0):
                when = "" if finite(moment) is None else f"{moment:.3f}"
                number = finite(value)
                writer.writerow([*place, finite(step), when, value if number is None else number])
    return text.getvalue().rstrip("\n")
