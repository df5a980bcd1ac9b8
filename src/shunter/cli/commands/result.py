"""Print what a function that ran as a job returned, or raised; wait for the job's end first.

The value is printed as JSON if it consists of JSON's types, else as Python shows it: a line for each call.
Reading a result unpickles it, after its seal was checked.
"""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from shunter.cli.commands.wait import EXIT_TIMEOUT
from shunter.cli.console import interrupt_message, note, out, print_json
from shunter.cli.parser import Parser, add_handle_argument, add_json_option, number_between
from shunter.errors import EXIT_JOB_FAILED, EXIT_OK, ResultError, ShunterError, UsageError
from shunter.functions.call_results import CallResults, RemoteTraceback
from shunter.functions.submitted_job import call_results, result_of
from shunter.limits import MOST_REPLICAS
from shunter.runner import Runner, get_runner
from shunter.specs.durations import parse_duration
from shunter.specs.status import AppStatus
from shunter.terminal import clean, clean_lines


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    parser.add_argument(
        "--index",
        type=number_between(0, MOST_REPLICAS),
        metavar="K",
        help="only that of call K, from 0, of a job that makes several",
    )
    parser.add_argument(
        "--timeout",
        metavar="TIME",
        help=f"give up after this (90, 10m, 2h) and exit with {EXIT_TIMEOUT}",
    )
    add_json_option(parser)


def run(args: Namespace) -> int:
    timeout = None if args.timeout is None else parse_duration(args.timeout)
    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        results = call_results(runner, handle)
        if args.index is not None and args.index >= results.count:
            raise UsageError(f"{handle} makes {results.count} calls, so there is no call {args.index}")
        again = f"`shunter result {handle}` waits again"
        with interrupt_message(f"no longer waiting; the job keeps running. {again}"):
            status = runner.wait(handle, timeout=timeout)
        if status is None:
            raise ResultError(f"{handle} no longer exists, so its result is not known")
        if not status.is_terminal():
            note(f"{handle} has not ended after {args.timeout}")
            return EXIT_TIMEOUT
        indices = range(results.count) if args.index is None else [args.index]
        outcomes = [_outcome(runner, results, index, status) for index in indices]
    if args.json:
        print_json(outcomes[0] if len(outcomes) == 1 else outcomes)
    else:
        for outcome in outcomes:
            _show(outcome)
    return EXIT_OK if all("value" in outcome for outcome in outcomes) else EXIT_JOB_FAILED


def _outcome(runner: Runner, results: CallResults, index: int, status: AppStatus) -> dict[str, Any]:
    """Return the value of a call, or its error as a text."""
    try:
        return {"value": result_of(runner, results, index, status)}
    except ShunterError as error:
        return {"error": str(error)}
    except Exception as error:
        cause = error.__cause__
        return {"error": cause.text if isinstance(cause, RemoteTraceback) else repr(error)}


def _show(outcome: dict[str, Any]) -> None:
    if "value" not in outcome:
        note(clean_lines(outcome["error"].rstrip()))
        return
    try:
        out(json.dumps(outcome["value"], ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError):
        out(clean(repr(outcome["value"])))
