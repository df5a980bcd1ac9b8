"""Remove ended jobs: their logs, the results in their directories, and their entries in lists.

A pattern means every job of the history that has ended and whose name or id matches. It only shows them,
unless --yes is given: `shunter delete --yes 'exp-*'`.
"""

from __future__ import annotations

import os
from argparse import Namespace

from shunter.cli.console import note, out
from shunter.cli.job_names import jobs_to_remove, named_jobs
from shunter.cli.parser import Parser, add_handle_argument
from shunter.errors import EXIT_OK
from shunter.runner import Runner, get_runner
from shunter.runner.jobsearch import is_pattern
from shunter.runner.observation import mark_deleted
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppStatus
from shunter.specs.training import local_path


def add_arguments(parser: Parser) -> None:
    add_handle_argument(parser, "+")
    parser.add_flag("--yes", help="delete what patterns match")
    parser.add_flag(
        "--forget",
        help="only remove the entries from lists, for jobs whose scheduler cannot be asked any more",
    )


def run(args: Namespace) -> int:
    """Run the command. If one job cannot be deleted, the others still are."""
    with get_runner() as runner:
        if args.forget:
            _forget(runner, args.handles, yes=args.yes)
            return EXIT_OK
        jobs = named_jobs(runner, args.handles, jobs_to_remove)
        running = {handle for handle in jobs.by_pattern if not jobs.statuses[handle].is_terminal()}
        handles = [handle for handle in jobs.statuses if handle not in running]
        only_shows = jobs.by_pattern and not args.yes
        if only_shows:
            for handle in handles:
                out(f"{handle}  {jobs.statuses[handle].state}")
        else:
            results = {handle: _results_of(runner, handle, jobs.statuses[handle]) for handle in handles}
            for handle, error in runner.delete_many(handles).items():
                if error is not None:
                    jobs.add_error(error)
                elif not results[handle]:
                    note(f"deleted {handle}")
                elif os.path.exists(results[handle]):
                    note(f"deleted {handle}; its results remain in {results[handle]}")
                else:
                    note(f"deleted {handle} and its results in {results[handle]}")
        jobs.note_rest("have not ended", running)
        if only_shows:
            note("nothing is deleted by a pattern without --yes")
    return jobs.code


def _forget(runner: Runner, names: list[str], *, yes: bool) -> None:
    """Take jobs out of lists without asking their schedulers."""
    handles = runner.resolve_handles(names, latest=False)
    only_shows = any(map(is_pattern, names)) and not yes
    for handle in handles:
        if only_shows:
            out(handle)
        else:
            mark_deleted(runner.history, handle)
            note(f"forgot {handle}; if it runs, it goes on")
    if only_shows:
        note("nothing is forgotten by a pattern without --yes")


def _results_of(runner: Runner, handle: str, status: AppStatus) -> str:
    """Return the path of a job's results on this machine, or ""."""
    if not runner.scheduler(parse_app_handle(handle).scheduler_backend).capabilities.is_local:
        return ""
    path = local_path(status.results) if status.results else ""
    return path if path and os.path.exists(path) else ""
