"""Jobs that exist: their states are asked for, waited for and recorded; several are ended or deleted.

Not seeing a job does not mean that it failed.
"""

from __future__ import annotations

import contextlib
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
    ConfigError,
    ShunterError,
    StateStoreError,
    UnknownAppException,
    UnreachableError,
    UsageError,
    described,
)
from shunter.parallel import for_all
from shunter.redaction import redact_text
from shunter.runner.events import log_event
from shunter.runner.races import as_lost
from shunter.runner.records import DELETED, INTENT, INTERRUPTED, REFUSED, SUBMITTED, JobRecord
from shunter.schedulers.api import Dependency, DescribeAppResponse, Scheduler, attempt, cannot_wait
from shunter.schedulers.capabilities import has_own
from shunter.specs.app import AppDef
from shunter.specs.handles import make_app_handle, parse_app_handle
from shunter.specs.serialize import from_json
from shunter.specs.status import AppState, AppStatus, is_started, is_terminal
from shunter.system.identity import Process, host_name

if TYPE_CHECKING:
    from shunter.runner.api import Runner
    from shunter.runner.history import History

SchedulerOf = Callable[[str], Scheduler[Any]]
#: A scheduler's name and an app id.
Job = tuple[str, str]
#: A job's description, None where there is no such job, or the error of the call.
Answer = DescribeAppResponse | Exception | None

Results = dict[str, ShunterError | None]
#: The suffix of a handle that means that any outcome of the job will do.
ANY_END = ":any"
#: Seconds until an unreachable scheduler is asked again; doubled after every attempt.
FIRST_RETRY = 0.25
# How long a submission by another machine, whose process cannot be checked, counts as in progress.
LONGEST_REMOTE_SUBMISSION = 24 * 3600.0
# How long a scheduler may take until it shows a job that it has accepted.
SETTLING_SECONDS = 600.0


def describe_all(scheduler_of: SchedulerOf, jobs: Iterable[Job]) -> dict[Job, Answer]:
    """Describe jobs of several schedulers: one batched call for each scheduler, all at the same time."""
    groups: dict[str, list[str]] = {}
    for name, app_id in jobs:
        groups.setdefault(name, []).append(app_id)

    answers: dict[Job, Answer] = {}

    def describe(name: str, app_ids: list[str]) -> None:
        try:
            responses = scheduler_of(name).describe_many(app_ids)
            answers.update({(name, app_id): responses.get(app_id) for app_id in app_ids})
        except Exception as error:
            answers.update({(name, app_id): error for app_id in app_ids})

    if len(groups) == 1:
        describe(*groups.popitem())
    threads = [threading.Thread(target=describe, args=group, daemon=True) for group in groups.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def describe_with_times(
    scheduler_of: SchedulerOf, jobs: Iterable[Job], is_new: Callable[[Job, DescribeAppResponse], bool]
) -> dict[Job, Answer]:
    """Describe jobs, and those once more of which the times are missing.

    Some schedulers describe many jobs without their replicas, and only these know when a job started.
    ``is_new`` tells whether the history does not know the times yet.
    """
    answers = describe_all(scheduler_of, jobs)
    incomplete = [
        job
        for job, answer in answers.items()
        if isinstance(answer, DescribeAppResponse)
        and is_started(answer.state)
        and answer.started_at is None
        and not answer.roles_statuses
        and is_new(job, answer)
    ]

    def describe(job: Job) -> DescribeAppResponse | None:
        try:
            return scheduler_of(job[0]).describe(job[1])
        except Exception:  # what is known without the replicas is shown
            return None

    for job, response in zip(incomplete, for_all(describe, incomplete), strict=True):
        answers[job] = response or answers[job]
    return answers


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
    dead = [record for record in records if record.phase == INTENT and _is_dead(record)]
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


def _is_dead(record: JobRecord) -> bool:
    return submitter_is_gone(record.host, record.submitter, record.created_at)


def submitter_is_gone(host: str, submitter: str, since: float) -> bool:
    """Tell whether a process that began to submit a job at this time cannot go on.

    Args:
        host: its machine. That of a process on another machine is not known; it is given a day.
        submitter: its identity there, as `Process` writes it.
        since: when it began, seconds since the epoch.
    """
    if host != host_name():
        return time.time() - since > LONGEST_REMOTE_SUBMISSION
    process = Process.parse(submitter)
    return process is None or not process.is_alive()


def refresh(history: History, scheduler_of: SchedulerOf, records: list[JobRecord]) -> None:
    """Bring the states of records up to date, in place: one batched call for each scheduler.

    Jobs that have ended are not asked for. A job that cannot be seen now becomes UNREACHABLE here, while the
    history keeps its last known state.
    """
    open_records = [r for r in records if r.phase == SUBMITTED and not is_terminal(r.state)]
    by_job = {_key(record): record for record in open_records}
    responses = describe_with_times(
        scheduler_of,
        [job for job, record in by_job.items() if record.state is not AppState.UNKNOWN],
        lambda job, response: by_job[job].started_at is None and response.state is not by_job[job].state,
    )
    seen: list[tuple[str, AppStatus]] = []
    for record in open_records:  # several may have one id, which a backend has used again
        if _key(record) not in responses:
            continue
        response = responses[_key(record)]
        if isinstance(response, Exception):
            status = unreachable(response)
        elif response is not None:
            status = as_lost(record, record.handle, response.to_status())
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


def _key(record: JobRecord) -> tuple[str, str]:
    return record.scheduler, record.app_id


def statuses(
    history: History, scheduler_of: SchedulerOf, handles: Iterable[str]
) -> dict[str, AppStatus | None]:
    """Return the states of several jobs, and record them."""
    parsed = {handle: parse_app_handle(handle) for handle in dict.fromkeys(handles)}
    pairs = {handle: (p.scheduler_backend, p.app_id) for handle, p in parsed.items()}
    handle_of = {pair: handle for handle, pair in pairs.items()}
    responses = describe_with_times(
        scheduler_of,
        handle_of,
        # a job that runs is asked for often, and its start can be learnt later
        lambda job, response: (
            response.state is not AppState.RUNNING and not _is_settled(history, handle_of[job])
        ),
    )
    result: dict[str, AppStatus | None] = {}
    seen: list[tuple[str, AppStatus]] = []
    for handle, pair in pairs.items():
        response = responses[pair]
        if response is None:
            result[handle] = unseen_status(history, scheduler_of, handle)
            continue
        if isinstance(response, Exception):
            status = known_end(history, handle, response) or unreachable(response)
        else:
            status = response.to_status()
            if status.is_terminal() and status.state is not AppState.SUCCEEDED:
                status = as_lost(history.find(handle), handle, status)
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


# ---- waiting for other jobs: `--after`


def open_dependencies(runner: Runner, scheduler: Scheduler[Any], after: Iterable[str]) -> list[Dependency]:
    """Return those of the jobs to wait for that have not ended.

    Args:
        runner: finds the jobs and their states.
        scheduler: where the job that waits is to run.
        after: the jobs, as users name them (`Runner.resolve_handle`), with ``:any`` if any outcome will do.

    Raises:
        ConfigError: the scheduler cannot do that, a job is on another one, or has failed already.
        UnknownAppException: there is no such job.
        BackendError: the state of a job cannot be determined now.
    """
    texts = [after] if isinstance(after, str) else list(after)
    if texts and not has_own(scheduler, "_depend_on"):
        raise cannot_wait(scheduler.backend)
    any_ends: dict[str, bool] = {}
    for text in texts:
        name = text.removesuffix(ANY_END)
        if not name:
            raise UsageError(f"--after {text!r} names no job", hint="Write HANDLE, or HANDLE:any.")
        try:
            handle = runner.resolve_handle(name)
        except UnknownAppException as error:
            error.hint = _without_condition(runner, name) or error.hint
            raise
        _check_scheduler(handle, scheduler)
        any_ends[handle] = any_ends.get(handle, True) and text.endswith(ANY_END)  # success is stricter
    return _still_open(runner, any_ends)


def _without_condition(runner: Runner, text: str) -> str:
    """Return the hint about ``JOB:condition`` or ``condition:JOB``; "" if no part of the text names a job."""
    for part in text.split(":") if ":" in text else ():
        with contextlib.suppress(ShunterError):
            runner.resolve_handle(part)
            return f"When it has succeeded: --after {part}. When it has ended: --after {part}{ANY_END}"
    return ""


def _check_scheduler(handle: str, scheduler: Scheduler[Any]) -> None:
    other = parse_app_handle(handle).scheduler_backend
    if other != scheduler.backend:
        raise ConfigError(
            f"a job on {scheduler.backend} cannot wait for {handle}, which is on {other}",
            hint=f"Wait for it first: `shunter wait {handle} && shunter run ...`.",
        )


def _still_open(runner: Runner, any_ends: dict[str, bool]) -> list[Dependency]:
    """Return the jobs that have not ended yet. A job that has ended as required need not be waited for."""
    statuses = runner.statuses(any_ends)
    dependencies = []
    for handle, any_end in any_ends.items():
        status = statuses[handle]
        if status is None:
            raise unknown_job(handle)
        if status.state is AppState.UNREACHABLE:
            raise BackendError(f"cannot tell whether {handle} has ended: {status.msg}")
        if not status.is_terminal():
            dependencies.append(Dependency(parse_app_handle(handle).app_id, any_end))
        elif not any_end and status.state is not AppState.SUCCEEDED:
            raise ConfigError(
                f"{handle} is {status.state}, so a job that waits for its success would never start",
                hint=f"To start however it ends: `--after {handle}{ANY_END}`.",
            )
    return dependencies


# ---- ending and deleting several jobs: few calls for each scheduler, and a result for each job


def cancel_all(runner: Runner, handles: Iterable[str]) -> Results:
    """Ask jobs to stop; returns by handle what went wrong. See `Scheduler.cancel_many`."""
    return _for_each_scheduler(
        runner, handles, "cancel", lambda scheduler, app_ids: scheduler.cancel_many(app_ids)
    )


def delete_all(runner: Runner, handles: Iterable[str]) -> Results:
    """Delete jobs that have ended; returns by handle what went wrong. See `Runner.delete`."""
    results: Results = {}
    records = {handle: runner.history.find(handle) for handle in dict.fromkeys(handles)}
    for handle, record in records.items():
        if record is None or record.phase == DELETED:
            parsed = parse_app_handle(handle)
            if not runner.scheduler(parsed.scheduler_backend).exists(parsed.app_id):
                results[handle] = unknown_job(handle)
    existing = [handle for handle in records if handle not in results]
    errors = _for_each_scheduler(runner, existing, "delete", _delete_each)
    for handle, error in errors.items():
        if error is None and records[handle] is not None:
            mark_deleted(runner.history, handle)
    return {handle: results.get(handle, errors.get(handle)) for handle in records}


def _delete_each(scheduler: Scheduler[Any], app_ids: list[str]) -> Results:
    return {app_id: attempt(scheduler.delete, app_id) for app_id in app_ids}


def _for_each_scheduler(
    runner: Runner,
    handles: Iterable[str],
    verb: str,
    call: Callable[[Scheduler[Any], list[str]], Results],
) -> Results:
    groups: dict[str, dict[str, str]] = {}
    unique = list(dict.fromkeys(handles))
    for handle in unique:
        parsed = parse_app_handle(handle)
        groups.setdefault(parsed.scheduler_backend, {})[handle] = parsed.app_id
    results: Results = {}
    for name, group in groups.items():
        app_id = next(iter(group.values())) if len(group) == 1 else None
        try:
            with log_event(verb, name, runner.name(), app_id=app_id):
                errors = call(runner.scheduler(name), list(group.values()))
        except (BackendError, ConfigError) as error:  # of all of them: the backend cannot be reached
            errors = dict.fromkeys(group.values(), error)
        results.update({handle: errors.get(app_id) for handle, app_id in group.items()})
    return {handle: results[handle] for handle in unique}
