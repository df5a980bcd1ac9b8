"""Start a job of the history again, exactly as before: same definition, code and options.

It does not wait for the jobs that the first one waited for (--after): they have ended.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from shunter.cli.parser import add_handle_argument
from shunter.cli.runrequest import following_settings, options_of_flags
from shunter.cli.shown_status import check_exit_code_source
from shunter.cli.submitting import (
    FollowPlan,
    add_plan_options,
    add_submission_options,
    after_submission,
    show_plan,
    submitting,
)
from shunter.runner import get_runner
from shunter.runner.config import load_config


def add_arguments(parser: ArgumentParser) -> None:
    add_handle_argument(parser)
    parser.add_argument(
        "--failed", action="store_true", help="for a sweep: only the points that failed or were cancelled"
    )
    add_submission_options(parser)
    add_plan_options(parser, "the same code as before")


def run(args: Namespace) -> int:
    with get_runner() as runner:
        original = runner.resolve_handle(args.handle)
        scheduler = args.scheduler or original.partition("://")[0]
        plan = FollowPlan(args, runner.scheduler(scheduler).is_local, following_settings(load_config()))
        flags = options_of_flags(args, scheduler, runner.scheduler_run_opts(scheduler))
        cfg = {**(runner.cfg_from_str(scheduler, *args.cfg) if args.cfg else {}), **flags} or None
        if plan.source:
            check_exit_code_source(plan.source, runner.replicas(original))
        changes = {"scheduler": args.scheduler, "cfg": cfg, "workspace": args.workspace, "after": args.after}
        changes["only_failed"] = args.failed
        if args.dryrun:
            info = runner.dryrun_rerun(original, **changes)
            return show_plan(runner, info, args.json)
        with submitting(runner):
            handle = runner.rerun(original, **changes)
        return after_submission(runner, handle, plan)
