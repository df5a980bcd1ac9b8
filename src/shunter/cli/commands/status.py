"""Show the state of a job and its replicas."""

from __future__ import annotations

from argparse import Namespace

from shunter.cli.console import interrupt_message, print_result
from shunter.cli.parser import Parser, add_handle_argument, add_json_option
from shunter.cli.replica_python import is_dev_job
from shunter.cli.shown_status import check_roles, exit_code_of_look, job_json, status_of, status_text
from shunter.cli.watching import StatusView, watched_states
from shunter.runner import get_runner
from shunter.runner.resource_use import use_lines
from shunter.specs.status import AppState


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser)
    parser.add_argument("--roles", metavar="A,B", help="only these roles")
    parser.add_flag("-w", "--watch", help="watch until the job has ended; if piped, print changes")
    add_json_option(parser)


def run(args: Namespace) -> int:
    roles = [role.strip() for role in args.roles.split(",") if role.strip()] if args.roles else None
    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        status = status_of(runner, handle)
        check_roles(status, roles or ())
        if args.watch:
            view = StatusView(handle, roles, args.json)
            with interrupt_message(f"no longer watching {handle}"):
                for status in watched_states(runner, handle):
                    view.show(status)
        else:
            if status.state == AppState.SUCCEEDED and is_dev_job(runner, handle):
                from shunter.why.explanation import add_notes  # only such a job says in its log why it ended

                add_notes(runner, handle, status)
            resources = [] if args.json else use_lines(runner, handle)
            text = status_text(handle, status, roles, resources)
            print_result(args.json, job_json(handle, status, roles), [text])
    return exit_code_of_look(status)
