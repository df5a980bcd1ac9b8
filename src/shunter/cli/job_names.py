"""Which jobs and replicas the user means: ``exp-*``, ``HANDLE/ROLE/0,1``, ``ROLE/0-3``."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from shunter.cli.console import note, show_error
from shunter.cli.parser import Parser
from shunter.errors import EXIT_OK, ShunterError, UsageError, did_you_mean
from shunter.limits import MOST_REPLICAS, cut, whole_number
from shunter.runner import Runner, get_runner
from shunter.runner.jobsearch import OPEN_STATES, JobFilter, is_pattern
from shunter.runner.observation import unknown_job
from shunter.specs.status import AppStatus

#: Replicas of a role: its name, and the indices, or None for all.
ReplicaChoice = tuple[str, "frozenset[int] | None"]
#: What to do about the names of files.
QUOTED = (
    "The shell replaces an unquoted * by names of files. Quote it: 'exp-*' for such jobs, '*' for all jobs."
)


@dataclass
class NamedJobs:
    """The jobs that a command line names.

    Args:
        statuses: state of each job that exists, by handle.
        by_pattern: handles that only patterns match.
        code: exit code of the first error about a name; 0 without one.
    """

    statuses: dict[str, AppStatus] = field(default_factory=dict)
    by_pattern: set[str] = field(default_factory=set)
    code: int = EXIT_OK

    def note_rest(self, what: str, handles: Iterable[str]) -> None:
        """Print how many of these jobs, which were left alone, only patterns match."""
        number = len(self.by_pattern.intersection(handles))
        if number:
            note(f"{number} of the jobs that match {what}")

    def add_error(self, error: ShunterError) -> None:
        """Show an error about one of the jobs; the first one decides the exit code."""
        show_error(error)
        self.code = self.code or error.exit_code


def named_jobs(runner: Runner, names: Iterable[str], find: Callable[[Runner, str], list[str]]) -> NamedJobs:
    """Find the jobs that are named by ``find``, and ask for all their states at once. Errors are shown."""
    jobs = NamedJobs()
    only_by_pattern: dict[str, bool] = {}
    errors: dict[str, ShunterError] = {}
    for name in names:
        try:
            for handle in find(runner, name):
                only_by_pattern[handle] = is_pattern(name) and only_by_pattern.get(handle, True)
        except ShunterError as error:
            errors[name] = error
    if len(errors) > 1 and all(map(os.path.lexists, errors)):
        errors = {
            "*": UsageError(f"no jobs, but files are named {' and '.join(list(errors)[:2])}", hint=QUOTED)
        }
    for wrong in errors.values():
        jobs.add_error(wrong)
    handles = list(only_by_pattern)
    # a single job is asked for also where the history cannot be opened
    statuses = {handles[0]: runner.status(handles[0])} if len(handles) == 1 else runner.statuses(handles)
    for handle, status in statuses.items():
        if status is None:
            jobs.add_error(unknown_job(handle))
        else:
            jobs.statuses[handle] = status
    jobs.by_pattern = {handle for handle in jobs.statuses if only_by_pattern[handle]}
    return jobs


def jobs_to_remove(runner: Runner, name: str) -> list[str]:
    """Return the handles that a name or pattern means; a name that several jobs have is refused."""
    return runner.resolve_handles([name], latest=False)


def jobs_to_end(runner: Runner, name: str) -> list[str]:
    """Return the same; of several jobs with a name, the only one that has not ended."""
    try:
        return jobs_to_remove(runner, name)
    except UsageError:
        found, _ = runner.search(JobFilter(states=OPEN_STATES, names=[name]))
        running = [record.handle for record in found if record.name == name]
        if len(running) != 1:
            raise
        return running


def exchanged(parser: Parser, words: Sequence[str]) -> str:
    """Return a command line with its two arguments exchanged, if just one of them names a job.

    "" otherwise, and for a command that takes only jobs.
    """
    if all(action.completer_name == "job_completer" for action in parser.arguments()):
        return ""
    places, index = [], 0
    while index < len(words):
        if parser.has_option(words[index]):
            index += len(parser.with_value(words[index:]))
            continue
        places.append(index)
        index += 1
    if len(places) != 2:
        return ""
    line, (first, second) = list(words), places
    with get_runner() as runner:
        if _is_job(runner, line[first]) == _is_job(runner, line[second]):
            return ""
    line[first], line[second] = line[second], line[first]
    return shlex.join([*parser.prog.split(), *line])


def _is_job(runner: Runner, name: str) -> bool:
    with contextlib.suppress(ShunterError):
        return bool(runner.resolve_handles([name]))
    return False


def split_target(text: str) -> tuple[str, list[ReplicaChoice]]:
    """Split ``HANDLE[/ROLE[/0,1]]`` into the job and the chosen replicas (an empty list: all).

    The job is a handle, the beginning of an id, ``-`` or nothing.

    Raises:
        UsageError: what follows the job does not name replicas.
    """
    scheduler, separator, rest = text.rpartition("://")
    parts = rest.split("/")
    in_handle = 2 if separator else 1  # session and app id, or the id alone
    if len(parts) > in_handle + 2:
        return text, []
    job = scheduler + separator + "/".join(parts[:in_handle])
    replicas = "/".join(parts[in_handle:]).strip("/")
    return job, [parse_replicas(replicas)] if replicas else []


def parse_replicas(text: str) -> ReplicaChoice:
    """Read ``ROLE``, ``ROLE/0``, ``ROLE/0,2`` or ``ROLE/0-3``.

    Raises:
        UsageError: it is none of these.
    """
    role, slash, ids = text.partition("/")
    if role and not slash:
        return role, None
    numbers: set[int] = set()
    for part in ids.split(","):
        first, dash, last = part.strip().partition("-")
        if not role or not first.isdecimal() or not (last.isdecimal() or not dash):
            raise UsageError(
                f"{text!r} does not name replicas",
                hint="Examples: trainer, trainer/0, trainer/0,2, trainer/0-3.",
            )
        try:
            low, high = (whole_number(number, 0, MOST_REPLICAS) for number in (first, last or first))
        except ValueError as error:
            raise UsageError(f"{cut(text)!r} does not name replicas: {error}") from None
        numbers.update(range(low, high + 1))
    return role, frozenset(numbers)


def select_replicas(
    replicas: Sequence[tuple[str, int]], choices: Sequence[ReplicaChoice]
) -> list[tuple[str, int]]:
    """Return the chosen replicas in the job's order; all without a choice.

    Raises:
        UsageError: the job has no such role or replica.
    """
    chosen: set[tuple[str, int]] = set()
    for role, ids in choices:
        existing = {k for name, k in replicas if name == role}
        if not existing:
            roles = dict.fromkeys(name for name, _ in replicas)
            raise UsageError(f"the job has no role {role!r}", hint=did_you_mean(role, roles))
        missing = sorted((ids or frozenset()) - existing)
        if missing:
            raise UsageError(
                f"the role {role!r} has no replica {missing[0]}",
                hint=f"It has {len(existing)}: {min(existing)} to {max(existing)}.",
            )
        chosen.update((role, k) for k in (existing if ids is None else ids))
    return [replica for replica in replicas if not choices or replica in chosen]
