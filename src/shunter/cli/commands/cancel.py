"""Ask jobs to stop. Jobs that have ended stay as they are.

A pattern means every job of the history whose name or id matches: `shunter cancel 'exp-*'`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from shunter.cli.console import note, show_error
from shunter.cli.parser import add_handle_argument
from shunter.cli.selecting import named_jobs
from shunter.cli.watching import wait_for_end
from shunter.errors import EXIT_INTERRUPTED
from shunter.runner import Runner, get_runner


def add_arguments(parser: ArgumentParser) -> None:
    add_handle_argument(parser, "*")
    parser.add_argument("--wait", action="store_true", help="wait until the jobs have ended")


def run(args: Namespace) -> int:
    """Run the command. If one job cannot be cancelled, the others still are."""
    with get_runner() as runner:
        jobs = named_jobs(runner, args.handles or ["-"])
        code = jobs.code
        running = []
        for handle, status in jobs.statuses.items():
            if not status.is_terminal():
                running.append(handle)
            elif handle not in jobs.by_pattern:
                note(f"{handle} has already ended: {status.state}")
        found = runner.cancel_many(running)
        asked = [handle for handle, error in found.items() if error is None]
        for handle in asked:
            note(f"asked {handle} to stop")
        for error in filter(None, found.values()):
            show_error(error)
            code = code or error.exit_code
        jobs.note_rest("have ended already", [h for h, s in jobs.statuses.items() if s.is_terminal()])
        if args.wait:
            try:
                _wait(runner, asked)
            except KeyboardInterrupt:
                note("\nno longer waiting; the jobs have been asked to stop")
                return EXIT_INTERRUPTED
    return code


def _wait(runner: Runner, handles: list[str]) -> None:
    for handle in handles:
        note(f"{handle} {wait_for_end(runner, handle, None).state}")
