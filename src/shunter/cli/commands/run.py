"""Start a job. Prints its handle, alone, on stdout; everything else goes to stderr.

All words after the component are its arguments: `shunter run utils.echo --help` shows its help.

A job of a local scheduler is followed to its end, and the exit code tells how it ended; --detach turns that
off. Jobs of other schedulers are followed with --wait or --log. On a terminal Ctrl-C asks a local job to
stop; otherwise it only stops watching (exit code 130), and the job keeps running.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from shunter.cli.parser import Parser, complete_with
from shunter.cli.runrequest import RunRequest, from_stdin
from shunter.cli.shown_plan import show_plan
from shunter.cli.shown_status import check_exit_code_source
from shunter.cli.submitting import (
    FollowPlan,
    add_plan_options,
    add_submission_options,
    after_submission,
    submitting,
)
from shunter.errors import ComponentArgumentError, UnknownSchedulerException, UsageError
from shunter.runner import Runner, get_runner
from shunter.specs.dryrun_info import AppDryRunInfo


def add_arguments(parser: Parser) -> None:
    add_submission_options(parser)
    add_plan_options(parser, "the current directory, if the scheduler ships code")
    add_record_options(parser)
    parser.add_argument(
        "--tee_logs",
        "--tee-logs",
        action="store_true",
        help="accepted for compatibility; lines always name their replica",
    )
    parser.add_argument("--stdin", action="store_true", help="read the job as JSON from stdin")
    component = parser.add_argument(
        "component", nargs="?", metavar="COMPONENT", help="utils.echo, path/to/file.py:fn, or ./script.py"
    )
    complete_with(component, "component_completer")
    rest = parser.add_argument(
        "component_args", nargs="...", metavar="...", help="arguments of the component"
    )
    complete_with(rest, "component_argument_completer")


def add_record_options(parser: Parser) -> None:
    """Add the options for what is recorded about a job."""
    parser.add_argument(
        "--parent_run_id", "--parent-run-id", metavar="ID", help="the run that this one belongs to"
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME[=REGEX]",
        help="a metric in the log: a name is enough, such as loss; for unusual lines add a regular "
        "expression with the value in parentheses; see `shunter metrics`; may be given several times",
    )


def parse(parser: Parser, argv: list[str]) -> Namespace:
    """Parse the options before the component, and leave what follows it as it is."""
    end = parser.index_of_argument(argv)
    args = parser.parse_arguments(argv[:end])
    rest = argv[end:]
    args.component = rest[0] if rest and rest[0] != "--" else None
    args.component_args = rest[1:]
    own = [word for word in rest[1:] if parser.takes_value(word.partition("=")[0]) is not None]
    args.misplaced = own[0] if own else None
    return args


def run(args: Namespace) -> int:
    try:
        return _run(args)
    except ComponentArgumentError as error:
        hint_at_misplaced(error, args, "run")
        raise


def hint_at_misplaced(error: ComponentArgumentError, args: Namespace, command: str) -> None:
    """Add to an error about arguments of a component that one of them is an option of the command."""
    if error.exit_code and args.misplaced:
        error.hint += f"\n{args.misplaced} is an option of `shunter {command}`: put it before the component."


def planned(args: Namespace, runner: Runner) -> tuple[RunRequest, AppDryRunInfo[Any]]:
    """Return the request of a command line and the job that it makes, without submitting it."""
    request = RunRequest(_with_stdin(args), runner.config)
    try:
        return request, runner.plan(request.submission(runner))
    except (ComponentArgumentError, UnknownSchedulerException) as error:
        raise request.located(error) from None


def _with_stdin(args: Namespace) -> Namespace:
    if not args.stdin:
        return args
    if args.component:
        raise UsageError("--stdin already specifies the component", hint=f"Leave out {args.component!r}.")
    return from_stdin(args, sys.stdin)


def _run(args: Namespace) -> int:
    args = _with_stdin(args)
    with get_runner() as runner:
        request = RunRequest(args, runner.config)
        try:
            return _submit_and_follow(args, runner, request)
        except (ComponentArgumentError, UnknownSchedulerException) as error:
            raise request.located(error) from None


def _submit_and_follow(args: Namespace, runner: Runner, request: RunRequest) -> int:
    scheduler = runner.scheduler(request.scheduler)
    following = FollowPlan(args, scheduler.capabilities.is_local, request.following)
    info = runner.plan(request.submission(runner))
    if args.dryrun:
        return show_plan(runner, info, args.json)
    roles = info.app.roles if info.app is not None else []
    replicas = [(role.name, k) for role in roles for k in range(role.num_replicas)]
    check_exit_code_source(following.source, replicas)
    request.announce(runner)
    with submitting(runner):
        handle = runner.schedule(info)
    return after_submission(runner, handle, following)
