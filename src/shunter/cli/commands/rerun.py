"""Start a job of the history again, exactly as before: same definition, code and options.

It does not wait for the jobs that the first one waited for (--after): they have ended.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from shunter.cli.parser import add_handle_argument
from shunter.cli.runrequest import following_settings, options_of_flags
from shunter.cli.shown_plan import show_plan
from shunter.cli.shown_status import check_exit_code_source
from shunter.cli.submitting import (
    FollowPlan,
    add_plan_options,
    add_submission_options,
    after_submission,
    submitting,
)
from shunter.errors import UsageError
from shunter.runner import Runner, get_runner
from shunter.runner.config import load_config
from shunter.schedulers.registry import SWEEPS
from shunter.sweeps.point_jobs import repeat


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
        plan = FollowPlan(
            args, runner.scheduler(scheduler).capabilities.is_local, following_settings(load_config())
        )
        flags = options_of_flags(args, scheduler, runner.scheduler_run_opts(scheduler))
        cfg = {**(runner.cfg_from_str(scheduler, *args.cfg) if args.cfg else {}), **flags} or None
        if plan.source:
            check_exit_code_source(plan.source, runner.replicas(original))
        if original.startswith(f"{SWEEPS}://"):
            with submitting(runner):
                handle = _rerun_points(runner, original, cfg, args)
            return after_submission(runner, handle, plan)
        info = runner.plan(
            runner.repeated(
                original,
                scheduler=args.scheduler,
                cfg=cfg,
                workspace=args.workspace,
                after=args.after,
                only_failed=args.failed,
            )
        )
        if args.dryrun:
            return show_plan(runner, info, args.json)
        with submitting(runner):
            handle = runner.schedule(info)
        return after_submission(runner, handle, plan)


def _rerun_points(runner: Runner, handle: str, cfg: dict[str, Any] | None, args: Namespace) -> str:
    """Repeat a sweep whose points are jobs; returns the new sweep's handle."""
    if args.scheduler or args.workspace or args.after or args.dryrun:
        raise UsageError(
            "the points of this sweep are jobs, which are rerun on the same scheduler with the same code: "
            "--scheduler, --workspace, --after and --dryrun cannot be given"
        )
    return repeat(runner, handle, cfg, only_failed=args.failed)
