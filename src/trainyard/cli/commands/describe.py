"""Show what a job was made of (roles, commands, images, variables, resources), and where its results are."""

from __future__ import annotations

from trainyard.cli.console import out, print_json
from trainyard.cli.jobstatus import unknown_job
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
    from trainyard.terminal import clean

    with get_runner() as runner:
        handle = runner.resolve_handle(args.handle)
        app = runner.describe(handle)
        status = runner.status(handle) if app is not None and app.roles else None
    if app is None:
        raise unknown_job(handle)
    data = masked_app(app)
    results = status.results if status is not None else None
    if args.json:
        print_json({"handle": handle, "app": data, "results": results})
    else:
        said = f"\n\nResults: {clean(results)}" if results else ""
        out(f"Job: {handle}\n{app_text(data)}{said}")
    return EXIT_OK
