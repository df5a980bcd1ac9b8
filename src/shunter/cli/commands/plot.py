"""Draw a metric of one or several jobs in the terminal, or into a PNG or SVG file.

shunter plot loss                      of the latest job
shunter plot loss JOB_A JOB_B          of two jobs, overlaid
shunter plot loss JOB/trainer/0,1      of two replicas
shunter plot loss SWEEP --best min     of the points of a sweep, the best first
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from shunter.cli.console import note, out, terminal_size, wants_colour, warn
from shunter.cli.metricselection import NO_METRICS, JobMetrics, add_selection_options, job_metrics
from shunter.cli.parser import complete_with
from shunter.errors import EXIT_INTERRUPTED, EXIT_OK, BackendError, UsageError, did_you_mean
from shunter.metrics.chart import TIME, ChartAxes, Line, draw, save
from shunter.runner import get_runner
from shunter.specs.limits import whole_number
from shunter.specs.sweep_points import index_of
from shunter.terminal import clean

#: Height of a chart in the terminal, in lines.
DEFAULT_HEIGHT = 20
#: More lines than this are not drawn: nobody could tell one from another.
MOST_LINES = 12


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="METRIC", help="the metric; `shunter metrics` lists them")
    target = parser.add_argument(
        "targets",
        nargs="*",
        metavar="HANDLE[/ROLE[/0,1]]",
        help="jobs (the latest by default): the first replica of each that has the metric, or the replicas "
        "that you name; for a sweep, all points",
    )
    complete_with(target, "job_completer")
    add_selection_options(parser)
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
    parser.add_argument("--log-scale", "--log_scale", action="store_true", help="use a logarithmic y axis")
    parser.add_argument("--width", metavar="N", help="width in columns (default: the terminal's)")
    parser.add_argument("--height", metavar="N", help=f"height in lines (default: {DEFAULT_HEIGHT})")
    parser.add_argument(
        "--output",
        "-o",
        metavar="FILE",
        help="write an image file, FILE.png or FILE.svg, instead (needs shunter[plot])",
    )


def run(args: Namespace) -> int:
    columns = terminal_size(1)[0]
    width = _size(args.width, "--width", columns, 30)
    height = _size(args.height, "--height", DEFAULT_HEIGHT, 8)
    with get_runner() as runner:
        jobs = job_metrics(runner, args.targets or ["-"], args, [args.name], filters=False)
        try:
            for job in jobs:
                job.update()
                for problem in job.new_problems():
                    warn(problem)
            return _show(_lines(jobs, args), args, width, height)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        finally:
            for job in jobs:
                job.close()


def _size(text: str | None, option: str, default: int, least: int) -> int:
    if text is None:
        return max(default, least)
    try:
        return whole_number(text, least, 1000)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _lines(jobs: Sequence[JobMetrics], args: Namespace) -> list[Line]:
    lines = []
    for job in jobs:
        found = job.by_name()
        several = found.get(args.name)
        if not several:
            known = ", ".join(list(found)[:20])
            hint = did_you_mean(args.name, found) or (f"It has {known}." if known else NO_METRICS)
            if len(jobs) == 1:
                raise UsageError(f"{job.handle} has no metric {args.name!r} so far", hint=hint)
            warn(f"{job.handle} has no metric {args.name!r} so far. {hint}")
            continue
        points = job.points()
        chosen = several if job.names_replicas or points else several[:1]
        for series in chosen:
            label = f"{job.label} {series.place}" if len(several) > 1 else job.label
            point = index_of(series.role, series.replica)
            lines.append(Line(f"{label} {points[point]}" if point < len(points) else label, series))
    if not lines:
        raise UsageError(f"none of these jobs has a metric {args.name!r} so far", hint=NO_METRICS)
    if args.best:
        sign = 1 if args.best == "min" else -1
        lines.sort(key=lambda line: _order(sign, line.series.least if sign > 0 else line.series.greatest))
    if len(lines) > MOST_LINES:
        warn(f"only the first {MOST_LINES} of {len(lines)} lines are drawn")
    return lines[:MOST_LINES]


def _order(sign: int, value: float) -> float:
    return sign * value if value == value else float("inf")


def _show(lines: Sequence[Line], args: Namespace, width: int, height: int) -> int:
    axes = ChartAxes(args.by, args.log_scale)
    if axes.by == TIME and not any(moment == moment for line in lines for moment in line.series.times):
        raise UsageError("these values have no times", hint="Leave out --by time.")
    if args.output:
        try:
            save(lines, axes, args.output, args.name)
        except OSError as error:
            raise BackendError(f"cannot write {args.output}: {error.strerror or error}") from error
        note(f"written: {args.output}")
        return EXIT_OK
    encoding = (getattr(sys.stdout, "encoding", "") or "").lower()
    out(clean(args.name))
    for line in draw(
        lines, axes, width, height, has_colours=wants_colour(sys.stdout), is_unicode="utf" in encoding
    ):
        out(line)
    return EXIT_OK
