"""What commands that submit share: options, and what happens after the submission."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from shunter.cli.console import OutputClosed, is_tty, note, out, print_json
from shunter.cli.interrupts import Detached
from shunter.cli.parser import (
    add_exit_code_option,
    add_json_option,
    add_scheduler_options,
    complete_with,
)
from shunter.cli.shown_status import check_exit_code_source, exit_code_of, job_json
from shunter.cli.terminal_progress import TerminalProgress
from shunter.cli.watching import follow
from shunter.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError
from shunter.runner import Runner
from shunter.specs.status import AppStatus


def add_submission_options(parser: ArgumentParser) -> None:
    """Add the options of every command that starts a job."""
    add_scheduler_options(parser, "where to run the job (see `shunter runopts`)")
    parser.add_argument("--wait", action="store_true", help="wait until the job has ended, without its logs")
    parser.add_argument("--log", action="store_true", help="follow the logs on stderr (implies --wait)")
    parser.add_argument(
        "--detach",
        action="store_true",
        help="return once the job is submitted, even if the scheduler is local",
    )
    add_exit_code_option(parser, " (implies --wait)")
    add_json_option(parser)


def add_plan_options(parser: ArgumentParser, default_workspace: str) -> None:
    """Add the options about what is submitted; ``default_workspace`` describes the default in the help."""
    parser.add_argument(
        "--dryrun",
        "--dry-run",
        "--dry_run",
        action="store_true",
        help="print the job and its request without starting anything",
    )
    parser.add_argument(
        "--notify",
        action="append",
        default=[],
        metavar="URL|COMMAND",
        help="when the job has ended, POST to this URL or run this command, once; may be given several times",
    )
    parser.add_argument(
        "--retry",
        metavar="CLASS=N,...",
        help="number of retries for each class of failure: oom=2:64G,node=3,preempted=inf,exception=0",
    )
    parser.add_argument(
        "--hang-timeout",
        "--hang_timeout",
        metavar="DURATION",
        help="when a replica shows no activity for this long (60s, 1h), write its stacks to its log",
    )
    parser.add_argument(
        "--on-hang",
        "--on_hang",
        choices=("report", "stop"),
        help="what to do when a replica hangs: only report it (the default), or stop the job",
    )
    after = parser.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="HANDLE[:any]",
        help="start only when this job of the same scheduler has succeeded; with :any, when it has ended;"
        " may be given several times",
    )
    complete_with(after, "job_completer")
    parser.add_argument(
        "--workspace",
        metavar="DIR",
        help="code that travels with the job: a directory, DIR=SUB,DIR=SUB, @FINGERPRINT for the code of "
        f"an earlier job, or '' for none (default: {default_workspace})",
    )


class FollowPlan:
    """Whether and how a job is watched after its submission, by options and configuration."""

    def __init__(self, args: Namespace, is_local: bool, configured: Mapping[str, bool] | None = None) -> None:
        if args.detach and (args.wait or args.log or args.exit_code_from):
            raise UsageError("--detach cannot be combined with --wait, --log or --exit-code-from")
        check_exit_code_source(args.exit_code_from)
        self.json: bool = args.json
        self.source: str | None = args.exit_code_from
        asked = args.wait or args.log or self.source is not None
        # setting only `wait` means no logs
        says_wait = args.wait or "wait" in (configured or {})
        usual = {"wait": is_local, "log": is_local and not says_wait, **(configured or {})}
        if args.detach or (usual.get("detach") and not asked):
            usual = {"wait": False, "log": False}
        self.logs: bool = args.log or usual["log"]
        self.waits: bool = asked or usual["wait"] or self.logs
        # in a script, an interrupt may not be meant for the job
        at_terminal = is_tty(sys.stdout) and is_tty(sys.stderr) and not args.json
        self.may_stop = is_local and at_terminal and self.waits


class submitting:
    """Context manager that shows the progress of shipping, and explains an interrupted submission."""

    def __init__(self, runner: Runner) -> None:
        runner.progress = self._progress = TerminalProgress(sys.stderr)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._progress.clear()
        if isinstance(error, KeyboardInterrupt):
            note("the submission was interrupted; `shunter list` shows whether the job was started")


def after_submission(runner: Runner, handle: str, plan: FollowPlan) -> int:
    """Print the handle, alone on stdout, then watch the job if requested; return the exit code."""
    if not plan.json:
        try:
            out(handle)
        except OutputClosed:
            if not plan.waits:  # the job is submitted: watching it does not depend on the reader of stdout
                raise
    elif plan.waits:
        note(handle)
    if not plan.waits:
        if plan.json:
            print_json(job_json(handle, runner.status(handle)))
        return EXIT_OK
    status: AppStatus | None = None
    try:
        status, stopped = follow(runner, handle, logs=plan.logs, may_stop=plan.may_stop)
    except Detached as detached:
        fate = "has been asked to stop" if detached.asked_to_stop else "keeps running"
        note(f"\nno longer watching; the job {fate}. `shunter log -f {handle}` follows it again")
        return detached.exit_code
    except OutputClosed:  # how the job ended is not known
        return EXIT_INTERRUPTED
    finally:
        if plan.json:
            print_json(job_json(handle, status if status is not None else runner.status(handle)))
    code = exit_code_of(status, plan.source)
    return EXIT_INTERRUPTED if stopped and code == 1 and plan.source is None else code
