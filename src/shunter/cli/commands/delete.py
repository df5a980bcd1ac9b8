"""Remove ended jobs: their logs, the results in their directories, and their entries in lists.

A pattern means every job of the history that has ended and whose name or id matches. It only shows them,
unless --yes is given: `shunter delete --yes 'exp-*'`.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace

from shunter.cli.console import note, out
from shunter.cli.job_names import named_jobs
from shunter.cli.parser import add_handle_argument
from shunter.errors import EXIT_OK
from shunter.runner import Runner, get_runner
from shunter.runner.jobsearch import is_pattern
from shunter.runner.observation import mark_deleted
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppStatus
from shunter.specs.training import local_path


def add_arguments(parser: ArgumentParser) -> None:
    add_handle_argument(parser, "+")
    parser.add_argument("--yes", action="store_true", help="delete what patterns match")
    parser.add_argument(
        "--forget",
        action="store_true",
        help="only remove the entries from lists, for jobs whose scheduler cannot be asked any more",
    )


def run(args: Namespace) -> int:
    """Run the command. If one job cannot be deleted, the others still are."""
    with get_runner() as runner:
        if args.forget:
            return _forget(runner, args.handles, yes=args.yes)
        jobs = named_jobs(runner, args.handles)
        running = {handle for handle in jobs.by_pattern if not jobs.statuses[handle].is_terminal()}
        handles = [handle for handle in jobs.statuses if handle not in running]
        if jobs.by_pattern and not args.yes:
            for handle in handles:
                out(f"{handle}  {jobs.statuses[handle].state}")
            jobs.note_rest("have not ended", running)
            note("nothing is deleted by a pattern without --yes")
            return jobs.code
        results = {handle: _results_of(runner, handle, jobs.statuses[handle]) for handle in handles}
        for handle, error in runner.delete_many(handles).items():
            if error is None:
                note(f"deleted {handle}{_fate(results[handle])}")
            else:
                jobs.add_error(error)
        jobs.note_rest("have not ended", running)
    return jobs.code


def _forget(runner: Runner, names: list[str], *, yes: bool) -> int:
    """Take jobs out of lists without asking their schedulers."""
    handles = runner.resolve_handles(names)
    if any(map(is_pattern, names)) and not yes:
        for handle in handles:
            out(handle)
        note("nothing is forgotten by a pattern without --yes")
        return EXIT_OK
    for handle in handles:
        mark_deleted(runner.history, handle)
        note(f"forgot {handle}; if it runs, it goes on")
    return EXIT_OK


def _results_of(runner: Runner, handle: str, status: AppStatus) -> str:
    """Return the path of a job's results on this machine, or ""."""
    if not runner.scheduler(parse_app_handle(handle).scheduler_backend).capabilities.is_local:
        return ""
    path = local_path(status.results) if status.results else ""
    return path if path and os.path.exists(path) else ""


def _fate(results: str) -> str:
    """Return what happened to the results: those in the job's directory were removed."""
    if not results:
        return ""
    remain = os.path.exists(results)
    return f"; its results remain in {results}" if remain else f" and its results in {results}"
