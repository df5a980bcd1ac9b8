"""Wait until a job has ended. Exits with 0 if it succeeded, with 1 otherwise."""

from __future__ import annotations

import sys
from argparse import Namespace

from shunter.cli.console import interrupt_message, is_tty, note, print_result
from shunter.cli.parser import Parser, add_exit_code_option, add_handle_argument, add_json_option
from shunter.cli.shown_status import check_exit_code_source, exit_code_of, job_json
from shunter.cli.watching import StatusLines, wait_for_end
from shunter.runner import get_runner
from shunter.specs.durations import parse_duration

EXIT_TIMEOUT = 124


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    parser.add_argument(
        "--timeout",
        metavar="TIME",
        help=f"give up after this (90, 10m, 2h) and exit with {EXIT_TIMEOUT}",
    )
    add_exit_code_option(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    timeout = None if args.timeout is None else parse_duration(args.timeout)
    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        if args.exit_code_from:
            check_exit_code_source(args.exit_code_from, runner.replicas(handle))
        lines = StatusLines(handle) if is_tty(sys.stderr) and not args.json else None
        with interrupt_message(
            f"no longer waiting; the job keeps running. `shunter wait {handle}` waits again"
        ):
            status = wait_for_end(runner, handle, lines, timeout)
    print_result(args.json, job_json(handle, status), [str(status.state)])
    if not status.is_terminal():
        note(f"{handle} has not ended after {args.timeout}")
        return EXIT_TIMEOUT
    return exit_code_of(status, args.exit_code_from)
