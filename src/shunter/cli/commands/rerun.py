"""Start a job of the history again, exactly as before: same definition, code and options.

In place of a job, a file that `shunter export` wrote may be named. It is a stranger's word: what it would
run is shown, and started only once you agree. Its code comes from this machine, or from --workspace.

It does not wait for the jobs that the first one waited for (--after): they have ended.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from shunter.cli.console import ask, is_tty, note
from shunter.cli.job_request import FollowPlan, add_submission_options, given_options, submit_and_follow
from shunter.cli.parser import Parser, add_handle_argument
from shunter.cli.shown_plan import show_plan
from shunter.cli.shown_status import check_exit_code_source
from shunter.errors import EXIT_OK, UsageError
from shunter.runner import get_runner
from shunter.runner.exported_run import read_exported, secrets_needed
from shunter.runner.records import JobRecord
from shunter.runner.rerun import repetition_of
from shunter.schedulers.registry import SWEEPS
from shunter.sweeps.point_jobs import repeat
from shunter.terminal import clean, clean_lines


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    parser.add_flag("--yes", help="start the job of an exported file without asking")
    parser.add_flag("--failed", help="for a sweep: only the points that failed or were cancelled")
    add_submission_options(parser, "the same code as before")


def run(args: Namespace) -> int:
    if args.handle and args.handle.endswith(".html"):
        return _rerun_exported(args)
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


def _rerun_exported(args: Namespace) -> int:
    """Start the job of an exported file, once the user has seen what that is."""
    if args.failed:
        raise UsageError("--failed needs a job of the history, whose points it can look at")
    record = read_exported(args.handle)
    with get_runner() as runner:
        name = args.scheduler or record.scheduler
        plan = FollowPlan.of(args, runner, name)
        cfg = given_options(args, runner, name) or None
        if not args.dryrun and not args.yes:
            _ask(args.handle, record, name)
        submission = repetition_of(
            runner, record, scheduler=name, cfg=cfg, workspace=args.workspace, after=args.after
        )
        info = runner.plan(submission)
        if args.dryrun:
            show_plan(runner, info, args.json)
            return EXIT_OK
        return submit_and_follow(runner, lambda: runner.schedule(info), plan)


def _ask(path: str, record: JobRecord, scheduler: str) -> None:
    """Show what an exported file would run, and ask.

    Raises:
        UsageError: the answer is no, or nobody can be asked.
    """
    note(f"{path} would run on {clean(scheduler)}:")
    note(clean_lines(json.dumps(record.app, indent=1)))
    if record.scheduler == scheduler:
        note(f"with the options {clean_lines(json.dumps(record.cfg))}")
    secrets = secrets_needed(record)
    if secrets:
        note(f"and get from your environment {clean(', '.join(secrets))}")
    if not is_tty(sys.stdin):
        raise UsageError(
            "nothing was started: there is no terminal to ask on", hint="--yes starts it without asking."
        )
    if not ask("Start it?"):
        raise UsageError("nothing was started")
