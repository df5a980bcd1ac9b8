"""Remove what is kept of jobs that have ended: their logs and their entries in lists."""

from __future__ import annotations

from trainyard.cli.console import note, show_error
from trainyard.cli.parser import add_handle_argument
from trainyard.errors import EXIT_OK, TrainyardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_handle_argument(parser, "+")


def run(args: Namespace) -> int:
    """Run the command. One job that cannot be deleted does not keep the others from it."""
    from trainyard.runner import get_runner

    code = EXIT_OK
    with get_runner() as runner:
        for text in args.handles:
            try:
                handle = runner.resolve_handle(text)
                runner.delete(handle)
                note(f"deleted {handle}")
            except TrainyardError as error:
                show_error(error)
                code = code or error.exit_code
    return code
