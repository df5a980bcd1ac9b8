"""Start a job of the history again, exactly as before: same definition, code and options.

It does not wait for the jobs that the first one waited for (--after): they have ended.
"""

from __future__ import annotations

from argparse import Namespace

from shunter.cli.job_request import FollowPlan, add_submission_options, given_options, submit_and_follow
from shunter.cli.parser import Parser, add_handle_argument
from shunter.cli.shown_plan import show_plan
from shunter.cli.shown_status import check_exit_code_source
from shunter.errors import EXIT_OK, UsageError
from shunter.runner import get_runner
from shunter.schedulers.registry import SWEEPS
from shunter.sweeps.point_jobs import repeat


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    parser.add_flag("--failed", help="for a sweep: only the points that failed or were cancelled")
    add_submission_options(parser, "the same code as before")


def run(args: Namespace) -> int:
    with get_runner() as runner:
        original = runner.resolve_handle(args.handle)
        scheduler = args.scheduler or original.partition("://")[0]
        plan = FollowPlan.of(args, runner, scheduler)
        cfg = given_options(args, runner, scheduler) or None
        if plan.source:
            check_exit_code_source(plan.source, runner.replicas(original))
        if original.startswith(f"{SWEEPS}://"):
            if args.scheduler or args.workspace or args.after or args.dryrun:
                raise UsageError(
                    "the points of this sweep are jobs, which are rerun on the same scheduler with the same "
                    "code: --scheduler, --workspace, --after and --dryrun cannot be given"
                )
            return submit_and_follow(
                runner, lambda: repeat(runner, original, cfg, only_failed=args.failed), plan
            )
        submission = runner.repeated(
            original,
            scheduler=args.scheduler,
            cfg=cfg,
            workspace=args.workspace,
            after=args.after,
            only_failed=args.failed,
        )
        info = runner.plan(submission)
        if args.dryrun:
            show_plan(runner, info, args.json)
            return EXIT_OK
        return submit_and_follow(runner, lambda: runner.schedule(info), plan)
