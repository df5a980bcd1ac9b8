"""The jobs that a command is given: handles, beginnings of ids and patterns, with their states."""

from __future__ import annotations

from collections.abc import Iterable

from shunter.cli.console import note, show_error
from shunter.errors import EXIT_OK, ShunterError
from shunter.runner import Runner
from shunter.runner.jobsearch import is_pattern
from shunter.runner.observation import unknown_job
from shunter.specs.status import AppStatus


class NamedJobs:
    """The jobs that a command line names.

    Attributes:
        statuses: state of each job that exists, by handle.
        by_pattern: handles that were found only by patterns.
        code: exit code of the first error about a name; 0 without one.
    """

    def __init__(self) -> None:
        self.statuses: dict[str, AppStatus] = {}
        self.by_pattern: set[str] = set()
        self.code = EXIT_OK

    def note_rest(self, what: str, handles: Iterable[str]) -> None:
        """Print how many of these jobs, which were left alone, were found only by patterns."""
        number = len(self.by_pattern.intersection(handles))
        if number:
            note(f"{number} of the jobs that match {what}")


def named_jobs(runner: Runner, texts: Iterable[str]) -> NamedJobs:
    """Find the jobs that are named, and ask for all their states at once. Errors are shown."""
    jobs = NamedJobs()
    handles: dict[str, None] = {}
    exact: set[str] = set()
    for text in texts:
        try:
            found = runner.resolve_handles([text])
        except ShunterError as error:
            show_error(error)
            jobs.code = jobs.code or error.exit_code
            continue
        handles.update(dict.fromkeys(found))
        if not is_pattern(text):
            exact.update(found)
    for handle, status in _statuses(runner, list(handles)).items():
        if status is not None:
            jobs.statuses[handle] = status
            continue
        unknown = unknown_job(handle)
        show_error(unknown)
        jobs.code = jobs.code or unknown.exit_code
    jobs.by_pattern = set(jobs.statuses) - exact
    return jobs


def _statuses(runner: Runner, handles: list[str]) -> dict[str, AppStatus | None]:
    if len(handles) == 1:  # without opening the history
        return {handles[0]: runner.status(handles[0])}
    return runner.statuses(handles)
