"""Start a job. Prints its handle, alone, on stdout; everything else goes to stderr.

shunter run --gpu 1 --mem 16G ./train.py --lr 0.3      a script; what its job needs stands before it
shunter run utils.echo --msg hello                     a component; --help behind it shows its help
shunter run -- nvidia-smi -L                           any command

All words after the script or component are its arguments.

A job of a local scheduler is followed to its end, and the exit code tells how it ended; --detach turns that
off. Jobs of other schedulers are followed with --wait or --log. On a terminal Ctrl-C asks a local job to
stop; otherwise it only stops watching (exit code 130), and the job keeps running.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from shunter.cli.job_request import (
    FollowPlan,
    add_component_arguments,
    add_submission_options,
    requested_job,
    submit_and_follow,
)
from shunter.cli.parser import Parser
from shunter.cli.race import names_several, run_race
from shunter.cli.requested_component import parse_component
from shunter.cli.shown_plan import show_plan
from shunter.cli.shown_status import check_exit_code_source
from shunter.errors import EXIT_OK, UsageError
from shunter.specs.dryrun_info import AppDryRunInfo

parse = parse_component


def add_arguments(parser: Parser) -> None:
    add_submission_options(parser, "the current directory, if the scheduler ships code")
    parser.add_argument(
        "--lease",
        metavar="S3_URI",
        help="for a race (-s A,B,...) of schedulers that share no folder: a folder of S3 for its lease, "
        "s3://BUCKET/PREFIX",
    )
    parser.add_flag("--tee_logs", help="accepted for compatibility; lines always name their replica")
    parser.add_flag("--stdin", help="read the job as JSON from stdin")
    add_component_arguments(parser)


def run(args: Namespace) -> int:
    if names_several(args):
        return run_race(args, _check)
    if args.lease:
        raise UsageError(
            "--lease is for races, and only one scheduler is named", hint="Example: -s slurm,kubernetes"
        )
    with requested_job(args) as (runner, request):
        info = runner.plan(request.submission)
        if args.dryrun:
            show_plan(runner, info, args.json)
            return EXIT_OK
        _check(request.follow, info)
        return submit_and_follow(runner, lambda: runner.schedule(info), request.follow, request.announcement)


def _check(follow: FollowPlan, info: AppDryRunInfo[Any]) -> None:
    roles = info.app.roles if info.app is not None else []
    check_exit_code_source(
        follow.source, [(role.name, k) for role in roles for k in range(role.num_replicas)]
    )
