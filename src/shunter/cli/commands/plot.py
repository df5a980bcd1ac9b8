"""Draw a metric of one or several jobs in the terminal, or into a PNG or SVG file.

shunter plot loss                      of the latest job
shunter plot [JOB]                     the first metric of a job
shunter plot loss JOB_A JOB_B          of two jobs, overlaid
shunter plot loss JOB/trainer/0,1      of two replicas
shunter plot loss SWEEP --best min     of the points of a sweep, the best first
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence

from shunter.cli.console import note, out, terminal_size, wants_colour, warn
from shunter.cli.metric_selection import NO_METRICS, JobMetrics, add_metric_options, job_metrics
from shunter.cli.parser import Parser, number_between
from shunter.errors import MOST_NAMES, BackendError, UsageError, did_you_mean
from shunter.metrics.chart import TIME, ChartAxes, Line, draw, save
from shunter.metrics.series import rank
from shunter.metrics.usage import PREFIX
from shunter.runner import Runner, get_runner
from shunter.runner.jobsearch import JobFilter
from shunter.specs.sweep_points import index_of, label_of, points_of
from shunter.terminal import clean

#: Width and height of a chart in the terminal, in columns and lines.
LEAST_WIDTH, LEAST_HEIGHT, MOST_SIZE = 30, 8, 1000
DEFAULT_HEIGHT = 20
#: More lines than this are not drawn: nobody could tell one from another.
MOST_LINES = 12


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        metavar="METRIC",
        help="the metric; `shunter metrics` lists them (default: the first)",
    )
    add_metric_options(
        parser,
        "jobs (the latest by default): the first replica of each that has the metric, or the replicas "
        "that you name; for a sweep, all points",
    )
    parser.add_argument(
        "--by",
        choices=("step", "time"),
        default="step",
        help="what the x axis shows: steps, or the time since the first value",
    )
    parser.add_argument(
        "--best",
        choices=("min", "max"),
        help=f"draw the lines with the lowest or highest values first; at most {MOST_LINES} are drawn",
    )
    parser.add_flag("--log-scale", help="use a logarithmic y axis")
    parser.add_argument(
        "--width",
        type=number_between(LEAST_WIDTH, MOST_SIZE),
        metavar="N",
        help="width in columns (default: the terminal's)",
    )
    parser.add_argument(
        "--height",
        type=number_between(LEAST_HEIGHT, MOST_SIZE),
        default=DEFAULT_HEIGHT,
        metavar="N",
        help=f"height in lines (default: {DEFAULT_HEIGHT})",
    )
    parser.add_argument(
        "--output",
        "-o",
        metavar="FILE",
        help="write an image file, FILE.png or FILE.svg, instead (needs shunter[plot])",
    )


def run(args: Namespace) -> None:
    asked = [args.name] if args.name else []
    with get_runner() as runner, job_metrics(runner, args, asked) as jobs:
        for job in jobs:
            job.update()
        if not args.targets and args.name not in jobs[0].by_name() and _is_job(runner, args.name):
            run(Namespace(**{**vars(args), "name": None, "targets": [args.name]}))
            return
        if not args.name:
            args.name = _first_name(jobs[0])
        lines = [line for job in jobs for line in _lines_of(runner, job, args.name, len(jobs) == 1)]
    if not lines:
        raise UsageError(f"none of these jobs has a metric {args.name!r} so far", hint=NO_METRICS)
    if args.best:
        lines.sort(key=lambda line: rank(line.series, args.best))
    if len(lines) > MOST_LINES:
        warn(f"only the first {MOST_LINES} of {len(lines)} lines are drawn")
    _show(lines[:MOST_LINES], args)


def _is_job(runner: Runner, name: str | None) -> bool:
    return name is not None and bool(runner.search(JobFilter(names=[name]), 1)[0])


def _first_name(job: JobMetrics) -> str:
    """Return the first metric of a job, before what it used, and say which others there are."""
    name, *others = sorted(job.by_name(), key=lambda name: name.startswith(PREFIX)) or [""]
    if not name:
        raise UsageError(f"{job.handle} has no metrics so far", hint=NO_METRICS)
    if others:
        names = ", ".join(map(clean, others[:MOST_NAMES]))
        note(f"{job.label} also has {names}: shunter plot {clean(others[0])}")
    return name


def _lines_of(runner: Runner, job: JobMetrics, name: str, is_only_job: bool) -> Iterator[Line]:
    """Yield the lines of a job: of its first replica, of those that are named, or of a sweep's points."""
    metrics = job.by_name()
    several = metrics.get(name)
    if not several:
        known = ", ".join(list(metrics)[:20])
        hint = did_you_mean(name, metrics) or (f"It has {known}." if known else NO_METRICS)
        if is_only_job:
            raise UsageError(f"{job.handle} has no metric {name!r} so far", hint=hint)
        warn(f"{job.handle} has no metric {name!r} so far. {hint}")
        return
    app = runner.describe(job.handle)
    points = next(filter(None, (points_of(role.metadata) for role in (app.roles if app else []))), [])
    for series in several if job.replicas or points else several[:1]:
        label = f"{job.label} {series.place}" if len(several) > 1 else job.label
        index = index_of(series.role, series.replica)
        yield Line(f"{label} {label_of(points[index])}" if index < len(points) else label, series)


def _show(lines: Sequence[Line], args: Namespace) -> None:
    axes = ChartAxes(args.by, args.log_scale)
    if axes.by == TIME and not any(moment == moment for line in lines for moment in line.series.times):
        raise UsageError("these values have no times", hint="Leave out --by time.")
    if args.output:
        try:
            save(lines, axes, args.output, args.name)
        except OSError as error:
            raise BackendError(f"cannot write {args.output}: {error.strerror or error}") from error
        note(f"written: {args.output}")
        return
    width = args.width or max(terminal_size(1)[0], LEAST_WIDTH)
    is_unicode = "utf" in (getattr(sys.stdout, "encoding", "") or "").lower()
    out(clean(args.name))
    for line in draw(
        lines, axes, width, args.height, has_colours=wants_colour(sys.stdout), is_unicode=is_unicode
    ):
        out(line)
