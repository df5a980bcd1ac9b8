"""Races: one job on several schedulers, of which the first to start runs and the others never do.

Each competitor is an ordinary job, whose record names the race. At its start, before anything of the user's,
a competitor takes the **lease**: a file that exactly one of them can create, in a folder that all of them
see. The lease belongs to a job, not to an attempt: its retries, replicas and nodes find their own name in it.
A competitor that finds another name ends at once, as CANCELLED.

The lease alone decides; nothing that this process does or fails to do lets two run. To save the others the
wait, the winner cancels those in its own queue, and a command that looks at a job of a race cancels all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shunter.backoff import polling
from shunter.errors import ConfigError, ShunterError, UnreachableError
from shunter.paths import state_dir
from shunter.runner.records import SUBMITTED, JobRecord
from shunter.schedulers.api import TakesLeases
from shunter.schedulers.ids import random_id
from shunter.specs.dryrun_info import AppDryRunInfo
from shunter.specs.status import is_terminal
from shunter.specs.submission import Submission

if TYPE_CHECKING:
    from shunter.runner.api import Runner

#: The folder of leases, in the state directory or on shared storage.
FOLDER = "races"
#: The place of jobs that see every folder of this machine, see `TakesLeases.lease_place`.
HERE = ("", "")


@dataclass(frozen=True)
class Race:
    """A planned race: its id, its jobs in the order of their submission, and the path of the lease."""

    id: str
    jobs: tuple[AppDryRunInfo[Any], ...]
    lease: str


def plan_race(runner: Runner, submissions: Sequence[Submission]) -> Race:
    """Plan a race of these jobs. Touches nothing.

    Raises:
        ConfigError: a job is wrong, or there is no folder that all of them see.
    """
    race = f"race-{random_id()}"
    for name in dict.fromkeys(submission.scheduler for submission in submissions):
        if not isinstance(runner.scheduler(name), TakesLeases):
            raise ConfigError(
                f"{name} cannot take part in a race: its jobs share no storage with the others, on which "
                "exactly one of them could take a lease before it starts",
                hint="Schedulers that can: local_cwd, local_docker, slurm, lsf, sge.",
            )
    jobs = tuple(runner.plan(replace(submission, race=race)) for submission in submissions)
    lease = os.path.join(_common_folder(runner, jobs), race)
    for info in jobs:
        info.lease = lease
        others = (each for each in jobs if each is not info and each.scheduler == info.scheduler)
        info.rivals = [each.app_id for each in others if each.app_id]
    return Race(race, jobs, lease)


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
            '[scheduler.NAME] shared_dir = "..." in shunter.toml.',
        )
    (host, folder), name = next(iter(names.items()))
    if host and local:
        raise ConfigError(
            f"{local} runs on this machine, and {name} sees {_described(host, folder)}: they share no folder "
            "for the lease of a race",
            hint=f"Run shunter on {host}, or leave {local} out.",
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
        ShunterError: all schedulers refused; the last error.
    """
    handles: list[str] = []
    refusal: ShunterError | None = None
    for info in race.jobs:
        holder = winner(runner, handles)
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


def winner(runner: Runner, handles: Iterable[str]) -> str:
    """Return the handle of the job that has the lease of a race; "" if none has, or it cannot be seen now.

    Args:
        runner: what asks the schedulers.
        handles: jobs of the race.
    """
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
        holder = winner(runner, handles)
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
        holder = winner(runner, (record.handle for record in rivals))
        losers = [record.handle for record in rivals if record.handle != holder]
        if holder and losers:
            runner.cancel_many(losers)
            runner.statuses(losers)  # records how they ended
            has_cancelled = True
    return has_cancelled


def _open(records: Iterable[JobRecord]) -> Iterator[JobRecord]:
    return (record for record in records if record.phase == SUBMITTED and not is_terminal(record.state))
