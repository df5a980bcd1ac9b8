"""Show what a job was made of: its roles, commands, images, variables and resources. Secrets are masked."""

from __future__ import annotations

from trainyard.cli.console import out, print_json
from trainyard.cli.jobs import unknown_job
from trainyard.cli.parser import add_handle_argument, add_json_option
from trainyard.errors import EXIT_OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_handle_argument(parser)
    add_json_option(parser)


def run(args: Namespace) -> int:
    """Run the command."""
    from trainyard.cli.apptext import app_text, masked_app
    from trainyard.runner import get_runner

    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        app = runner.describe(handle)
    if app is None:
        raise unknown_job(handle)
    data = masked_app(app)
    if args.json:
        print_json({"handle": handle, "app": data})
    else:
        out(f"Job: {handle}\n{app_text(data)}")
    return EXIT_OK
