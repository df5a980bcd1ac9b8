"""The states of jobs: asked for, waited for, and recorded. Not seeing a job does not mean that it failed."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shunter.backoff import Backoff
from shunter.errors import (
    AccessError,
    BackendError,
    StateStoreError,
    UnknownAppException,
    UnreachableError,
    described,
)
from shunter.parallel import for_all
from shunter.redaction import redact_text
from shunter.runner.records import DELETED, INTENT, INTERRUPTED, REFUSED, SUBMITTED, JobRecord
from shunter.schedulers.api import DescribeAppResponse, Scheduler
from shunter.specs.app import AppDef
from shunter.specs.handles import make_app_handle, parse_app_handle
from shunter.specs.serialize import from_json
from shunter.specs.status import AppState, AppStatus, is_started, is_terminal
from shunter.system.identity import Process, host_name

if TYPE_CHECKING:
    from shunter.runner.history import History

SchedulerOf = Callable[[str], Scheduler[Any]]

#: Seconds until an unreachable scheduler is asked again; doubled after every attempt.
FIRST_RETRY = 0.25
# How long a submission by another machine, whose process cannot be checked, counts as in progress.
LONGEST_REMOTE_SUBMISSION = 24 * 3600.0
# How long a scheduler may take until it shows a job that it has accepted.
SETTLING_SECONDS = 600.0


def describe_all(
    scheduler_of: SchedulerOf, jobs: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], DescribeAppResponse | Exception | None]:
    """Describe jobs of several schedulers: one batched call for each scheduler, all at the same time.

    Takes and returns pairs of a scheduler's name and an app id; by pair: the description, None where there is
    no such job, or the error of the call.
    """
    groups: dict[str, list[str]] = {}
    for name, app_id in jobs:
        groups.setdefault(name, []).append(app_id)
    results: dict[tuple[str, str], DescribeAppResponse | Exception | None] = {}

    def describe(name: str, app_ids: list[str]) -> None:
        try:
            responses = scheduler_of(name).describe_many(app_ids)
            results.update({(name, app_id): responses.get(app_id) for app_id in app_ids})
        except Exception as error:
            results.update({(name, app_id): error for app_id in app_ids})

    if len(groups) == 1:
        describe(*groups.popitem())
    elif groups:
        threads = [threading.Thread(target=describe, args=group, daemon=True) for group in groups.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def unreachable(error: Exception) -> AppStatus:
    """Return the status of a job that cannot be seen now."""
    return AppStatus(AppState.UNREACHABLE, num_restarts=-1, msg=redact_text(described(error)))


def known_end(history: History, app_handle: str, error: Exception) -> AppStatus | None:
    """Return how a job ended that cannot be seen now, from the history; None if that is not recorded."""
    try:
        record = history.find(app_handle)
    except StateStoreError:
        return None
    if record is None or record.phase != SUBMITTED or not is_terminal(record.state):
        return None
    note = f"as last seen; {record.scheduler} cannot be asked now: {unreachable(error).msg}"
    return as_recorded(record, f"{record.msg} ({note})" if record.msg else note)


def as_recorded(record: JobRecord, msg: str) -> AppStatus:
    """Return the status that the history has of a job, with another reason."""
    return AppStatus(record.state, -1, msg, started_at=record.started_at, ended_at=record.ended_at)


def recorded_status(record: JobRecord | None) -> AppStatus | None:
    """Return what the history says of a job that its scheduler does not know, if anything."""
    if record is None or record.phase not in (INTENT, SUBMITTED, REFUSED):
        return None
    if record.phase != SUBMITTED:
        return AppStatus(AppState.UNSUBMITTED, msg=record.msg or "its submission is in progress")
    if is_terminal(record.state):
        note = "as last seen; its scheduler has forgotten the job"
        return as_recorded(record, f"{record.msg} ({note})" if record.msg else note)
    if may_still_appear(record):
        return as_recorded(record, "")
    return AppStatus(AppState.UNKNOWN, msg=forgotten(record))


def may_still_appear(record: JobRecord) -> bool:
    """Tell whether a job was accepted so recently that its scheduler may not show it yet."""
    accepted = record.submitted_at or record.created_at
    return record.state is AppState.SUBMITTED and time.time() - accepted < SETTLING_SECONDS


def forgotten(record: JobRecord) -> str:
    """Say that the scheduler does not know a job that it had accepted."""
    return f"its scheduler no longer knows the job; it was last seen {record.state}"


def record_states(history: History, seen: Iterable[tuple[str, AppStatus]]) -> None:
    """Record the states that were seen, if the history can be written."""
    try:
        history.observe(pair for pair in seen if pair[1].state is not AppState.UNREACHABLE)
    except StateStoreError:
        return


def reconcile(history: History, scheduler_of: SchedulerOf, records: list[JobRecord]) -> None:
    """Settle the submissions whose process died before it recorded the outcome.

    A job that its scheduler knows is adopted; one that it does not know was never submitted. If the scheduler
    cannot be asked now, nothing changes.
    """
    dead = [record for record in records if record.phase == INTENT and _submitter_is_gone(record)]
    if not dead:
        return
    responses = describe_all(scheduler_of, {(r.scheduler, r.app_id) for r in dead if r.app_id})
    for record in dead:
        response = responses.get((record.scheduler, record.app_id))
        if isinstance(response, Exception) or (
            response is not None and response.state == AppState.UNREACHABLE
        ):
            continue
        try:
            _settle(history, record, response)
        except StateStoreError:
            return


def _settle(history: History, record: JobRecord, response: DescribeAppResponse | None) -> None:
    if response is None:
        history.refused(record.key, INTERRUPTED if record.app_id else f"{INTERRUPTED} before it had an id")
        return
    status = response.to_status()
    history.submitted(
        record.key,
        make_app_handle(record.scheduler, record.session, record.app_id),
        record.app_id,
        submitted_at=record.created_at,
        state=status.state.name,
        msg=status.reason,
        started_at=status.started_at,
        ended_at=status.ended_at,
    )


def _submitter_is_gone(record: JobRecord) -> bool:
    if record.host != host_name():
        return time.time() - record.created_at > LONGEST_REMOTE_SUBMISSION
    submitter = Process.parse(record.submitter)
    return submitter is None or not submitter.is_alive()


def refresh(history: History, scheduler_of: SchedulerOf, records: list[JobRecord]) -> None:
    """Bring the states of records up to date, in place: one batched call for each scheduler.

    Jobs that have ended are not asked for. A job that cannot be seen now becomes UNREACHABLE here, while the
    history keeps its last known state.
    """
    open_ones = [r for r in records if r.phase == SUBMITTED and not is_terminal(r.state)]
    responses = describe_all(scheduler_of, {_key(r) for r in open_ones if r.state is not AppState.UNKNOWN})
    started = {
        _key(r) for r in open_ones if r.started_at is None and _lacks_times(responses.get(_key(r)), r.state)
    }
    responses |= _described_alone(scheduler_of, started)
    seen: list[tuple[str, AppStatus]] = []
    for record in open_ones:
        if _key(record) not in responses:
            continue
        response = responses[_key(record)]
        if isinstance(response, Exception):
            status = unreachable(response)
        elif response is not None:
            status = response.to_status()
            if status.state is not record.state:
                seen.append((record.handle, status))
        elif may_still_appear(record):
            continue
        else:
            status = AppStatus(AppState.UNKNOWN, msg=forgotten(record))
            seen.append((record.handle, status))
        record.state, record.msg, record.ended_at = status.state, status.reason, status.ended_at
        record.started_at = status.started_at or record.started_at
    record_states(history, seen)


def _lacks_times(response: DescribeAppResponse | Exception | None, last_seen: AppState) -> bool:
    """Tell whether a job has started since it was last seen, and its description leaves out its replicas.

    Some schedulers describe many jobs without their replicas, and only these know when the job started.
    """
    if response is None or isinstance(response, Exception) or response.state is last_seen:
        return False
    return is_started(response.state) and response.started_at is None and not response.roles_statuses


def _described_alone(
    scheduler_of: SchedulerOf, jobs: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], DescribeAppResponse]:
    """Describe jobs with their replicas, one by one; those that cannot be asked now are left out."""

    def describe(key: tuple[str, str]) -> DescribeAppResponse | None:
        try:
            return scheduler_of(key[0]).describe(key[1])
        except Exception:  # what is known without the replicas is shown
            return None

    keys = list(jobs)
    responses = dict(zip(keys, for_all(describe, keys), strict=True))
    return {key: response for key, response in responses.items() if response is not None}


def _key(record: JobRecord) -> tuple[str, str]:
    return record.scheduler, record.app_id


def statuses(
    history: History, scheduler_of: SchedulerOf, handles: Iterable[str]
) -> dict[str, AppStatus | None]:
    """Return the states of several jobs, and record them."""
    parsed = {handle: parse_app_handle(handle) for handle in dict.fromkeys(handles)}
    pairs = {handle: (p.scheduler_backend, p.app_id) for handle, p in parsed.items()}
    responses = describe_all(scheduler_of, dict.fromkeys(pairs.values()))
    ended = [
        pair
        for handle, pair in pairs.items()
        if _lacks_times(responses[pair], AppState.RUNNING) and not _is_settled(history, handle)
    ]
    responses |= _described_alone(scheduler_of, ended)
    result: dict[str, AppStatus | None] = {}
    seen = []
    for handle, pair in pairs.items():
        response = responses[pair]
        if response is None:
            result[handle] = unseen_status(history, scheduler_of, handle)
            continue
        if isinstance(response, Exception):
            status = known_end(history, handle, response) or unreachable(response)
        else:
            status = response.to_status()
        result[handle] = status
        seen.append((handle, status))
    record_states(history, seen)
    return result


def _is_settled(history: History, app_handle: str) -> bool:
    try:
        record = history.find(app_handle)
    except StateStoreError:
        return True
    return record is None or is_terminal(record.state)


def unseen_status(history: History, scheduler_of: SchedulerOf, app_handle: str) -> AppStatus | None:
    """Return the state of a job that its scheduler does not know, from the history."""
    record = history.find(app_handle)
    if record is not None and record.phase == INTENT:
        reconcile(history, scheduler_of, [record])
        record = history.find(app_handle)
    return recorded_status(record)


def wait_for_end(
    scheduler: Scheduler[Any], app_id: str, wait_interval: float, timeout: float | None
) -> DescribeAppResponse | Exception | None:
    """Return the description of a job when it has ended or the time is up.

    An unreachable scheduler is tried again, with growing pauses, and causes only one warning. The error is
    returned only if it lasts until the time is up.

    Raises:
        StateStoreError: the jobs of this machine cannot be read; waiting does not help.
        AccessError: the credentials are refused; likewise.
    """
    backoff = Backoff(min(FIRST_RETRY, wait_interval), wait_interval, jitter=0, limit=timeout).start()
    warned = False
    while True:
        try:
            return scheduler.wait(app_id, backoff.left())
        except (StateStoreError, AccessError):
            raise
        except (BackendError, OSError) as error:
            if backoff.left() == 0:
                return error
            if not warned:
                warnings.warn(
                    f"{scheduler.backend} cannot be reached; still waiting for {app_id}: {error}",
                    RuntimeWarning,
                    stacklevel=4,
                )
                warned = True
            backoff.pause()


# ---- what else is known of a job


def unknown_job(app_handle: str) -> UnknownAppException:
    """Return the error for a job that its scheduler does not know."""
    return UnknownAppException(
        f"{app_handle.partition('://')[0]} does not know the job {app_handle}",
        hint="`shunter list` shows the jobs in this machine's history.",
    )


def _listed_record(history: History, app_handle: str) -> JobRecord | None:
    record = history.find(app_handle)
    return None if record is None or record.phase == DELETED else record


def _recorded_metadata(history: History, app_handle: str) -> dict[str, dict[str, Any]]:
    """Return the metadata of a job's roles as they were submitted, by role; empty if the history has none."""
    try:
        record = _listed_record(history, app_handle)
    except StateStoreError:  # the scheduler's definition does without
        return {}
    roles = [] if record is None else record.app.get("roles", [])
    return {role["name"]: role.get("metadata", {}) for role in roles}


def definition(history: History, app_handle: str, response: DescribeAppResponse | None) -> AppDef | None:
    """Return a job's definition: the scheduler's, or else the history's; None if there is no such job.

    The metadata of a role that the scheduler does not keep, such as the points of a sweep, are the history's.

    Raises:
        UnreachableError: neither has it, and the job cannot be seen now.
    """
    if response is not None and response.roles:
        recorded = _recorded_metadata(history, app_handle)
        roles = [
            replace(role, metadata={**recorded.get(role.name, {}), **role.metadata})
            for role in response.roles
        ]
        return AppDef(response.app_id, roles, dict(response.metadata))
    record = _listed_record(history, app_handle)
    if record is not None and record.app:
        return from_json(AppDef, record.app)
    if response is not None and response.state == AppState.UNREACHABLE:
        raise UnreachableError(
            f"cannot look at {app_handle}: {response.msg}",
            hint="The state of the job is unknown at the moment. Try again later.",
        )
    return None if response is None else AppDef(response.app_id, [], dict(response.metadata))


def replicas(
    history: History, app_handle: str, response: DescribeAppResponse | None
) -> list[tuple[str, int]]:
    """Return a job's replicas as pairs of role name and index; see `Runner.replicas`."""
    if response is None and _listed_record(history, app_handle) is None:
        raise unknown_job(app_handle)
    if response is not None and response.roles_statuses:
        return [(role.role, replica.id) for role in response.roles_statuses for replica in role.replicas]
    app = definition(history, app_handle, response)
    return [(role.name, k) for role in app.roles for k in range(role.num_replicas)] if app else []


def mark_deleted(history: History, app_handle: str) -> None:
    """Leave a deleted job out of lists; warn if the history cannot be written."""
    try:
        history.mark_deleted(app_handle)
    except StateStoreError as error:
        warnings.warn(
            f"{app_handle} is deleted, but lists still show it: {error.message}", RuntimeWarning, stacklevel=3
        )
