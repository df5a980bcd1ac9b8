"""Ask jobs to stop. Jobs that have ended stay as they are."""

from __future__ import annotations

from trainyard.cli.console import note, show_error
from trainyard.cli.jobstatus import status_of
from trainyard.cli.parser import add_handle_argument
from trainyard.errors import EXIT_INTERRUPTED, EXIT_OK, TrainyardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from trainyard.runner import Runner


def add_arguments(parser: ArgumentParser) -> None:
    add_handle_argument(parser, "*")
    parser.add_argument("--wait", action="store_true", help="wait until the jobs have ended")


def run(args: Namespace) -> int:
    """Run the command. If one job cannot be cancelled, the others still are."""
    from trainyard.runner import get_runner

    code, asked = EXIT_OK, []
    with get_runner() as runner:
        for text in args.handles or [""]:
            try:
                handle = runner.resolve_handle(text)
                if _cancel(runner, handle):
                    asked.append(handle)
            except TrainyardError as error:
                show_error(error)
                code = code or error.exit_code
        if args.wait:
            try:
                _wait(runner, asked)
            except KeyboardInterrupt:
                note("\nno longer waiting; the jobs have been asked to stop")
                return EXIT_INTERRUPTED
    return code


def _cancel(runner: Runner, handle: str) -> bool:
    status = status_of(runner, handle)
    if status.is_terminal():
        note(f"{handle} has already ended: {status.state}")
        return False
    runner.cancel(handle)
    note(f"asked {handle} to stop")
    return True


def _wait(runner: Runner, handles: list[str]) -> None:
    from trainyard.cli.watching import wait_for_end

    for handle in handles:
        note(f"{handle} {wait_for_end(runner, handle, None).state}")
