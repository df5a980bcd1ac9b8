"""Races: one job on several schedulers, of which the first to start runs and the others never do.

Each competitor is an ordinary job, whose record names the race. At its start, before anything of the user's,
a competitor takes the **lease**: a file that exactly one of them can create, in a folder that all of them
see, or where there is none, an object of S3 (`shunter._toolkit.race_lease`). The lease belongs to a job, not
to an attempt: its retries, replicas and nodes find their own name in it. A competitor that finds another
name ends at once, as CANCELLED.

The lease alone decides; nothing that this process does or fails to do lets two run. To save the others the
wait, the winner cancels those in its own queue, and a command that looks at a job of a race cancels all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from shunter.backoff import polling
from shunter.errors import ConfigError, ShunterError, UnreachableError
from shunter.paths import state_dir
from shunter.runner.records import SUBMITTED, JobRecord
from shunter.schedulers.api import TakesLeases
from shunter.schedulers.ids import random_id
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.status import NONE, AppState, AppStatus, is_terminal
from shunter.specs.submission import Submission

if TYPE_CHECKING:
    from shunter.runner.api import Runner

#: The folder of leases, in the state directory or on shared storage.
FOLDER = "races"
#: The place of jobs that see every folder of this machine, see `TakesLeases.lease_place`.
HERE = ("", "")
LOST = "race lost to"
EXAMPLE = "--lease s3://BUCKET/PREFIX"


@dataclass(frozen=True)
class Race:
    """A planned race.

    Attributes:
        id: its id; that of a race whose lease is an object is the object's URI.
        jobs: its jobs, in the order of their submission.
        lease: path or URI of the lease.
        ends: until when the lease can be taken, if it is an object; a job that starts later does not run.
    """

    id: str
    jobs: tuple[AppDryRunInfo[Any], ...]
    lease: str
    ends: datetime | None = None


def plan_race(runner: Runner, submissions: Sequence[Submission], location: str = "") -> Race:
    """Plan a race of these jobs. Writes nothing.

    Args:
        runner: what plans the jobs.
        submissions: the jobs.
        location: folder of S3 (``s3://bucket/prefix``) for the lease, if the jobs see no common folder.

    Raises:
        ConfigError: a job is wrong, or there is no place for the lease that all of them reach.
        AwsError: S3 cannot be asked.
    """
    from shunter.schedulers.aws import lease_objects

    problem = lease_objects.location_problem(location) if location else ""
    if problem:
        raise ConfigError(problem, hint=f"Example: {EXAMPLE}")
    name = f"race-{random_id()}"
    if not _some_are_apart(runner, submissions, location):
        jobs = tuple(runner.plan(replace(submission, race=name)) for submission in submissions)
        try:
            lease = os.path.join(_common_folder(runner, jobs), name)
        except ConfigError:
            if not location:
                raise
        else:
            for info in jobs:
                info.lease = lease
            return Race(name, _with_rivals(jobs), lease)
    uri = f"{location.rstrip('/')}/{name}"
    urls, ends = lease_objects.sign(uri)
    jobs = tuple(runner.plan(replace(submission, race=uri, lease=urls)) for submission in submissions)
    return Race(uri, _with_rivals(jobs), uri, ends)


def _is_object(race: str) -> bool:
    """Tell whether the lease of a race is an object of S3, whose URI is the race's id."""
    return race.startswith("s3://")


def _some_are_apart(runner: Runner, submissions: Sequence[Submission], location: str) -> bool:
    """Tell whether jobs of a scheduler share no folder with others, so that the lease must be an object.

    Raises:
        ConfigError: a scheduler's jobs can take no lease, or there is no place for an object.
    """
    schedulers = {submission.scheduler: runner.scheduler(submission.scheduler) for submission in submissions}
    apart = [name for name, each in schedulers.items() if not isinstance(each, TakesLeases)]
    for name in apart:
        if not schedulers[name].capabilities.races:
            raise ConfigError(
                f"{name} cannot take part in a race: it is not known how its jobs could take a lease",
                hint="All schedulers that come with shunter can take part.",
            )
    if apart and not location:
        raise ConfigError(
            f"{', '.join(apart)}: jobs there share no folder with others, in which exactly one could take "
            "the lease of a race",
            hint=f"Name a folder of S3 for the lease, which all jobs reach by HTTPS: {EXAMPLE}",
        )
    return bool(apart)


def _with_rivals(jobs: tuple[AppDryRunInfo[Any], ...]) -> tuple[AppDryRunInfo[Any], ...]:
    """Let each job know the others on its scheduler."""
    for info in jobs:
        others = (each for each in jobs if each is not info and each.scheduler == info.scheduler)
        info.rivals = [each.app_id for each in others if each.app_id]
    return jobs


def _common_folder(runner: Runner, jobs: Iterable[AppDryRunInfo[Any]]) -> str:
    """Return a folder for the lease that all jobs see at their start.

    Raises:
        ConfigError: there is none.
    """
    names: dict[tuple[str, str], str] = {}
    for info in jobs:
        scheduler = runner.scheduler(info.scheduler)
        assert isinstance(scheduler, TakesLeases)
        names.setdefault(scheduler.lease_place(info), info.scheduler)
    local = names.pop(HERE, "")
    if not names:
        return os.path.join(state_dir(), FOLDER)
    if len(names) > 1:
        texts = [f"{name}: {_described(*place)}" for place, name in names.items()]
        raise ConfigError(
            f"these schedulers share no folder for the lease of a race ({'; '.join(texts)})",
            hint="Give them the same shared_dir, which all their nodes see, and the same host: "
            f'[scheduler.NAME] shared_dir = "..." in shunter.toml. Or name a folder of S3: {EXAMPLE}',
        )
    (host, folder), name = next(iter(names.items()))
    if host and local:
        raise ConfigError(
            f"{local} runs on this machine, and {name} sees {_described(host, folder)}: they share no folder "
            "for the lease of a race",
            hint=f"Run shunter on {host}, leave {local} out, or name a folder of S3: {EXAMPLE}",
        )
    return os.path.join(folder, FOLDER)


def _described(host: str, folder: str) -> str:
    return f"{folder} on {host}" if host else folder


def submit_race(runner: Runner, race: Race, report: Callable[[str], None]) -> list[str]:
    """Submit the jobs one after the other, until one has started; returns their handles.

    What a scheduler refuses is reported, and the race goes on without it.

    Args:
        runner: what submits them.
        race: the plan.
        report: receives, in a sentence, why a job does not take part.

    Raises:
        ShunterError: all schedulers refused; the last error. Or no job could take the lease.
    """
    if _is_object(race.id):
        from shunter.schedulers.aws import lease_objects

        lease_objects.check(race.lease.rpartition("/")[0])
    handles: list[str] = []
    refusal: ShunterError | None = None
    for info in race.jobs:
        holder = winner(runner, race.id, handles)
        if holder:
            report(f"{holder} has started, so nothing was submitted to {info.scheduler}")
            continue
        try:
            handles.append(runner.schedule(info))
        except ShunterError as error:
            refusal = error
            is_unknown = isinstance(error, UnreachableError)  # the queue may have it, and it may win
            what = "may not take part" if is_unknown else "does not take part"
            report(f"{info.scheduler} {what}: {error.message}")
    if not handles and refusal is not None:
        raise refusal
    return handles


def winner(runner: Runner, race: str, handles: Iterable[str]) -> str:
    """Return the handle of the job that has the lease of a race; "" if none has, or it cannot be seen now.

    Args:
        runner: what asks the schedulers.
        race: id of the race.
        handles: jobs of the race.
    """
    if _is_object(race):
        from shunter.schedulers.aws import lease_objects

        with suppress(ShunterError):
            return lease_objects.holder(race)
        return ""
    for handle in handles:
        with suppress(ShunterError):  # another one may tell
            scheduler, app_id = runner.locate(handle)
            if isinstance(scheduler, TakesLeases) and (holder := scheduler.lease_holder(app_id)):
                return holder
    return ""


def await_winner(runner: Runner, race: str, handles: Sequence[str]) -> str:
    """Wait until a job of a race has started, and cancel the others; returns "" if all ended without that."""
    polls = polling()
    while True:
        statuses = runner.statuses(handles)
        holder = winner(runner, race, handles)
        if holder:
            settle(runner, [race])
            return holder
        if all(status is None or is_terminal(status.state) for status in statuses.values()):
            return ""
        polls.pause()


def settle(runner: Runner, races: Iterable[str]) -> bool:
    """Cancel the jobs that still wait in races that have a winner; tells whether there were any.

    What goes wrong is left to the next look.
    """
    has_cancelled = False
    for race in races:
        rivals = list(_open(runner.history.of_race(race)))
        handles = [record.handle for record in rivals]
        holder = winner(runner, race, handles) if handles else ""
        losers = [record.handle for record in rivals if record.handle != holder]
        if holder and losers:
            runner.cancel_many(losers)
            runner.statuses(losers)  # records how they ended
            has_cancelled = True
    return has_cancelled


def _open(records: Iterable[JobRecord]) -> Iterator[JobRecord]:
    return (record for record in records if record.phase == SUBMITTED and not is_terminal(record.state))


def as_lost(record: JobRecord | None, handle: str, status: AppStatus) -> AppStatus:
    """Return the status of a job; if it ended since another one has the lease, an object, as CANCELLED.

    A command before the job's own took the lease, or did not: its scheduler knows only the exit code.

    Args:
        record: the job's; None if it is not in the history.
        handle: the job's.
        status: what its scheduler says.
    """
    has_failed = status.is_terminal() and status.state is not AppState.SUCCEEDED
    if not has_failed or record is None or not record.race or not _is_object(record.race):
        return status
    reason = record.msg
    if not is_terminal(record.state):
        from shunter.schedulers.aws import lease_objects

        holder = ""
        with suppress(ShunterError):
            holder = lease_objects.holder(record.race)
        reason = f"{LOST} {holder}" if holder not in ("", handle) else ""
    if not reason.startswith(LOST):
        return status
    return replace(status, state=AppState.CANCELLED, msg=reason, structured_error_msg=NONE)
