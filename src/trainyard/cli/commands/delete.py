"""Remove ended jobs: their logs, the results in their directories, and their entries in lists."""

from __future__ import annotations

import os

from trainyard.cli.console import note, show_error
from trainyard.cli.parser import add_handle_argument
from trainyard.errors import EXIT_OK, TrainyardError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from trainyard.runner import Runner


def add_arguments(parser: ArgumentParser) -> None:
    add_handle_argument(parser, "+")


def run(args: Namespace) -> int:
    """Run the command. If one job cannot be deleted, the others still are."""
    from trainyard.runner import get_runner

    code = EXIT_OK
    with get_runner() as runner:
        for text in args.handles:
            try:
                handle = runner.resolve_handle(text)
                results = _results_of(runner, handle)
                runner.delete(handle)
                note(f"deleted {handle}{_fate(results)}")
            except TrainyardError as error:
                show_error(error)
                code = code or error.exit_code
    return code


def _results_of(runner: Runner, handle: str) -> str:
    """Return the path of a job's results on this machine, or ""."""
    from trainyard.specs.handles import parse_app_handle
    from trainyard.specs.training import local_path

    if not runner.scheduler(parse_app_handle(handle).scheduler_backend).is_local:
        return ""
    status = runner.status(handle)
    path = local_path(status.results) if status is not None and status.results else ""
    return path if path and os.path.exists(path) else ""


def _fate(results: str) -> str:
    """Return what happened to the results: those in the job's directory were removed."""
    if not results:
        return ""
    return (
        f"; its results remain in {results}" if os.path.exists(results) else f" and its results in {results}"
    )
