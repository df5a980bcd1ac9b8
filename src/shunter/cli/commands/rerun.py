"""Start a job of the history again: the same definition, code and options.

shunter rerun hello                       exactly as before
shunter rerun hello -- --lr 0.5           with another value of --lr
shunter rerun --from-checkpoint hello     as `shunter resume hello`
shunter rerun run.html                    a job that `shunter export` wrote to a file

Words behind -- replace arguments of the same name, or are added. Of a sweep, JOB/ROLE/K is one point. It does
not wait for the jobs that the first one waited for (--after): they have ended. A file may come from anybody:
what it would run is shown, and started only once you agree; its code comes from this machine, or from
--workspace.
"""

from __future__ import annotations

import json
import shlex
import sys
from argparse import Namespace

from shunter.cli.console import ask, is_tty, note
from shunter.cli.job_names import split_target
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
    add_repeat_arguments(parser)
    parser.add_flag("--yes", help="start the job of an exported file without asking")
    parser.add_flag("--from-checkpoint", help="begin with the last checkpoint of the job, which has ended")


def add_repeat_arguments(parser: Parser) -> None:
    """Add what `rerun` and `resume` have in common."""
    add_handle_argument(parser)
    parser.add_flag("--failed", help="for a sweep: only the points that failed or were cancelled")
    parser.add_argument("--name", default="", help="name of the new job (default: that of the old one)")
    add_submission_options(parser, "the same code as before")


def parse(parser: Parser, argv: list[str]) -> Namespace:
    """Parse the arguments; those behind ``--`` are for the job."""
    end = argv.index("--") if "--" in argv else len(argv)
    try:
        args = parser.parse_arguments(argv[:end])
    except UsageError as error:
        at = next((k for k, word in enumerate(argv[:end]) if word.startswith("-") and word != "-"), None)
        if end == len(argv) and at is not None and not parser.has_option(argv[at]):
            command = shlex.join([*parser.prog.split(), *argv[:at], "--", *argv[at:]])
            error.hint += f"\nFor the job: {command}"
        raise
    args.changes = argv[end + 1 :]
    return args


def run(args: Namespace) -> int:
    if args.handle and args.handle.endswith(".html"):
        return _rerun_exported(args)
    with get_runner() as runner:
        job, choices = split_target("-" if args.handle is None else args.handle)
        original = runner.resolve_handle(job)
        scheduler = args.scheduler or original.partition("://")[0]
        plan = FollowPlan.of(args, runner, scheduler)
        cfg = given_options(args, runner, scheduler) or None
        if plan.source:
            check_exit_code_source(plan.source, runner.replicas(original))
        if original.startswith(f"{SWEEPS}://"):
            _check_sweep(args, original, is_part=bool(choices))
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
            arguments=args.changes,
            name=args.name,
            replica=_point(choices),
            from_checkpoint=args.from_checkpoint,
        )
        info = runner.plan(submission)
        if args.from_checkpoint:
            note(f"goes on from the checkpoints of {original}")
        if args.dryrun:
            show_plan(runner, info, args.json)
            return EXIT_OK
        return submit_and_follow(runner, lambda: runner.schedule(info), plan)


def _point(choices: list[tuple[str, frozenset[int] | None]]) -> int | None:
    if not choices:
        return None
    (_, indices), *_ = choices
    if indices is None or len(indices) != 1:
        raise UsageError("one point of a sweep can be repeated, or all", hint="Example: JOB/ROLE/0")
    return next(iter(indices))


def _check_sweep(args: Namespace, handle: str, *, is_part: bool) -> None:
    """Refuse what cannot be changed of a sweep whose points are jobs."""
    given = {
        "--scheduler": args.scheduler,
        "--workspace": args.workspace,
        "--after": args.after,
        "--dryrun": args.dryrun,
        "--name": args.name,
        "--from-checkpoint": args.from_checkpoint,
        "arguments": args.changes,
        "a point": is_part,
    }
    refused = [name for name, value in given.items() if value]
    if refused:
        raise UsageError(
            f"the points of {handle} are jobs, which are rerun on the same scheduler with the same code: "
            f"{', '.join(refused)} cannot be given",
            hint=f"Repeat a point by its job: `shunter describe {handle}` names them.",
        )


def _rerun_exported(args: Namespace) -> int:
    """Start the job of an exported file, once the user has seen what that is."""
    if args.failed or args.from_checkpoint:
        raise UsageError("--failed and --from-checkpoint need a job of the history, which a file is not")
    record = read_exported(args.handle)
    with get_runner() as runner:
        name = args.scheduler or record.scheduler
        plan = FollowPlan.of(args, runner, name)
        cfg = given_options(args, runner, name) or None
        if not args.dryrun and not args.yes:
            _ask(args.handle, record, name)
        submission = repetition_of(
            runner,
            record,
            scheduler=name,
            cfg=cfg,
            workspace=args.workspace,
            after=args.after,
            arguments=args.changes,
            name=args.name,
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
