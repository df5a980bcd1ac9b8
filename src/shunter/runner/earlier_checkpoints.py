"""Where the checkpoints of an ended job are, so that a new job goes on from them.

The new job gets a copy: the toolkit makes it where the job runs, before the script starts. Only a
place that the user named, `--checkpoints URI`, is one place for both jobs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shunter.errors import BackendError, ConfigError, ShunterError
from shunter.runner.jobsearch import OPEN_STATES, JobFilter
from shunter.runner.records import JobRecord
from shunter.schedulers.kept_results import ResultPlace
from shunter.schedulers.sent_results import SentResults
from shunter.specs.app import AppDef, Role, macros
from shunter.specs.status import AppState, is_terminal
from shunter.specs.training import METADATA_KEY, local_path, specification

if TYPE_CHECKING:
    from shunter.runner.api import Runner

_PART = "checkpoints"
#: Key in the training specification's checkpoints: by replica, where those of the earlier job are.
EARLIER = "earlier"
#: Characters that the places of all replicas may take; they travel in a variable.
MOST_CHARACTERS = 64 * 1024


def go_on(runner: Runner, record: JobRecord, app: AppDef, kept: Mapping[str, Sequence[int]]) -> None:
    """Let a job, which repeats a recorded one, begin with the checkpoints of that one. Changes ``app``.

    Args:
        runner: asks the schedulers.
        record: the earlier job.
        app: the new job.
        kept: for each role whose replicas have other numbers than before, their old numbers.

    Raises:
        ConfigError: the earlier job has not ended, or has no checkpoints that the new one can read.
    """
    _check_ended(runner, record)
    looked_at: list[str] = []
    is_found = False
    for role in app.roles:
        if not specification(role.metadata):
            looked_at.append(f"role {role.name!r} runs without the toolkit")
        elif _go_on(runner, record, role, kept.get(role.name) or range(role.num_replicas), looked_at):
            is_found = True
    if not is_found:
        raise ConfigError(
            f"{record.handle} has no checkpoints to go on from: {'; '.join(looked_at)}",
            hint="Scripts write them to the directory that SM_CHECKPOINT_DIR names. Where a scheduler keeps "
            "no files of jobs, name a place when the job starts: --checkpoints URI\n"
            f"To start from the beginning: shunter rerun {record.app_id}",
        )


def _check_ended(runner: Runner, record: JobRecord) -> None:
    status = runner.status(record.handle)
    state = record.state if status is None else status.state
    if state is AppState.UNREACHABLE:
        raise BackendError(
            f"cannot go on from {record.handle}: whether it has ended cannot be seen now",
            hint=(status.msg if status is not None else "") or "Try again.",
        )
    if not is_terminal(state) and state is not AppState.UNKNOWN:
        raise ConfigError(
            f"cannot go on from {record.handle}, which has not ended: it is {state.name}",
            hint=f"Wait for its end: shunter wait {record.app_id}\nOr end it: shunter cancel {record.app_id}",
        )


def _go_on(runner: Runner, record: JobRecord, role: Role, old: Sequence[int], looked_at: list[str]) -> bool:
    """Tell whether a role's replicas, which had these numbers, have checkpoints; the new ones get them."""
    spec = specification(role.metadata)
    checkpoints = {key: value for key, value in (spec.get(_PART) or {}).items() if key != EARLIER}
    uri = str(checkpoints.get("uri") or "")
    is_shared = bool(uri) and "${" not in uri
    carries_out = runner.scheduler(record.scheduler).capabilities.reads_training_specs
    earlier: dict[str, Any] = {}
    is_found = False
    for new, k in enumerate(old):
        named = macros.Values("", record.app_id, str(k), "").substitute(uri) if uri else ""
        try:
            place, count, is_sent = _look(runner, record, role.name, k, named)
        except ShunterError as error:
            looked_at.append(f"{role.name}/{k}: {error.message}")
            continue
        if count and ((is_shared and place == named) or (carries_out and is_sent and place and not uri)):
            is_found = True  # the new job restores those by itself
        elif carries_out:
            looked_at.append(f"{role.name}/{k}: no files in a place that both jobs name for checkpoints")
        elif count and place:
            is_found = True
            earlier[str(new)] = {"uri": place.replace("$", "$$"), "files": count}
        else:
            looked_at.append(
                f"{role.name}/{k}: {'no files in ' if not count else ''}{place or named or 'what it keeps'}"
                + (" cannot be read by another job" if count else "")
            )
    if is_found and is_shared:
        _check_alone(runner, record, uri)
    if earlier:
        if len(json.dumps(earlier)) > MOST_CHARACTERS:
            raise ConfigError(
                f"{len(earlier)} replicas have checkpoints in separate places, too many for a request",
                hint="Have them written to one place: --checkpoints URI.",
            )
        role.metadata[METADATA_KEY] = {**spec, _PART: {**checkpoints, EARLIER: earlier}}
    return is_found


def _look(runner: Runner, record: JobRecord, role: str, k: int, named: str) -> tuple[str, int, bool]:
    """Return where a replica's checkpoints are, "" if no other job can read them there, and their number.

    The last value tells whether they were sent there. ``named`` is the place that the user named for them; ""
    if none.
    """
    path = local_path(named)
    if path and os.path.isdir(path):
        count = sum(not name.endswith(".partial") for _, _, names in os.walk(path) for name in names)
        if count:
            return named, count, True
    try:
        place: ResultPlace = runner.results(record.handle, role, k)
    except ConfigError:  # it has no other results
        if "://" not in named:
            raise
        place = SentResults("")
    if isinstance(place, SentResults) and named:
        place.checkpoints = named
    count = _count(place)
    if not count and "://" in named and not isinstance(place, SentResults):
        place = SentResults("", checkpoints=named)
        count = _count(place)
    return str(getattr(place, "checkpoints_at", "")), count, isinstance(place, SentResults)


def _count(place: ResultPlace) -> int:
    paths = [file.path for file in place.files()]
    return sum(path.startswith(f"{_PART}/") and not path.endswith(".partial") for path in paths)


def _check_alone(runner: Runner, record: JobRecord, uri: str) -> None:
    """Refuse two jobs that would write to one place at once."""
    running, _ = runner.search(JobFilter(states=OPEN_STATES))
    for job in running:
        for role in job.app.get("roles", ()):
            place = specification(role.get("metadata") or {}).get(_PART) or {}
            if place.get("uri") == uri:
                raise ConfigError(
                    f"cannot go on from {record.handle}: {job.handle}, which has not ended, writes its "
                    f"checkpoints to the same place, {uri}",
                    hint=f"Wait for its end: shunter wait {job.app_id}",
                )
