"""Start a sweep: run a component with several values of some options, as one job with a replica per point.

Separate values by commas; 0..9 is a range, and @FILE reads one value per line. Every combination is a point.
Quotes protect a comma: --msg '"a,b"'. The sweep has one handle for `status`, `log`, `cancel` and `rerun
--failed`; `shunter points` shows the values and state of each point, and the best one. All points are
checked before anything is submitted.
"""

from __future__ import annotations

import sys
from argparse import Namespace

from shunter.cli.console import note, out, table
from shunter.cli.job_request import (
    FollowPlan,
    add_component_arguments,
    add_submission_options,
    requested_job,
    submit_and_follow,
)
from shunter.cli.parser import Parser, number_between
from shunter.cli.requested_component import parse_component
from shunter.cli.shown_plan import show_plan
from shunter.components.finder import get_component
from shunter.errors import EXIT_OK, UsageError
from shunter.redaction import Redactor
from shunter.runner import get_runner
from shunter.schedulers.registry import SWEEPS
from shunter.specs.handles import parse_app_handle
from shunter.specs.sweep_points import Point, label_of
from shunter.sweeps.grids import points_from_words
from shunter.sweeps.planning import plan_sweep
from shunter.sweeps.point_jobs import submit_points
from shunter.terminal import clean

SHOWN = 50
MOST = 1_000_000

parse = parse_component


def add_arguments(parser: Parser) -> None:
    add_submission_options(parser, "the current directory, if the scheduler ships code")
    parser.add_argument(
        "--parallel",
        type=number_between(1, MOST),
        metavar="N",
        help="how many points run at the same time (default: as many as fit)",
    )
    parser.add_argument(
        "--sample", type=number_between(1, MOST), metavar="N", help="run only N points, chosen at random"
    )
    parser.add_argument(
        "--seed-of-sample",
        type=number_between(0, MOST),
        default=0,
        metavar="S",
        help="random seed of --sample (default: 0)",
    )
    parser.add_argument(
        "--resume",
        metavar="HANDLE",
        help="submit the points that are missing because the process that submitted them was killed",
    )
    add_component_arguments(parser)


def run(args: Namespace) -> int:
    if args.resume:
        return _resume(args)
    with requested_job(args) as (runner, request):
        if args.exit_code_from:
            raise UsageError("--exit-code-from cannot be used with a sweep: its replicas are the points")
        submission = request.submission
        component, words = get_component(submission.component or ""), list(submission.arguments)
        points = points_from_words(component, words, args.sample, args.seed_of_sample)
        plan = plan_sweep(runner, submission, points, args.parallel)
        if args.dryrun:
            if not args.json:
                out(f"# points\n{points_table(points)}\n")
            show_plan(runner, plan.info, args.json)
            return EXIT_OK
        parallel = args.parallel or plan.parallel
        at_once = f", at most {parallel} at a time" if parallel else ""
        first, last = label_of(vars(points[0])), label_of(vars(points[-1]))
        note(f"{len(points)} points{at_once}, from {first} to {last}")
        return submit_and_follow(runner, lambda: plan.submit(runner), request.follow, request.announcement)


def _resume(args: Namespace) -> int:
    if args.component:
        raise UsageError("--resume takes no component: the sweep already has one")
    with get_runner() as runner:
        handle = runner.resolve_handle(args.resume)
        parsed = parse_app_handle(handle)
        if parsed.scheduler_backend != SWEEPS:
            raise UsageError(
                f"{handle} is a single job, so none of its points can be missing",
                hint="`shunter rerun --failed` repeats the points that failed.",
            )

        def send() -> str:
            submit_points(runner, parsed.app_id)
            return handle

        return submit_and_follow(runner, send, FollowPlan.of(args, runner, SWEEPS))


def points_table(points: list[Point]) -> str:
    """Return the points of a sweep that has not been submitted, as a table."""
    names, redactor = list(points[0].values), Redactor()
    rows = [
        [str(index), *(clean(str(redactor.named(name, point.values[name]))) for name in names)]
        for index, point in enumerate(points[:SHOWN])
    ]
    more = f"\n... and {len(points) - SHOWN} more" if len(points) > SHOWN else ""
    return table(("POINT", *names), rows, sys.stdout) + more
