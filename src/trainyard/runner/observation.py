"""Looking at jobs: many at once, without mistaking a failure to look for a failure of the job."""

from __future__ import annotations

import time

from trainyard.errors import StateStoreError, TrainyardError
from trainyard.runner.records import INTENT, REFUSED, SUBMITTED
from trainyard.specs.handles import make_app_handle, parse_app_handle
from trainyard.specs.status import AppState, AppStatus, is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from trainyard.runner.history import History
    from trainyard.runner.records import JobRecord
    from trainyard.schedulers.base import DescribeAppResponse, Scheduler

    SchedulerOf = Callable[[str], Scheduler[Any]]

# How long a submission by another machine is taken to be under way: its process cannot be looked at.
LONGEST_REMOTE_SUBMISSION = 24 * 3600.0
# How long a scheduler may take until it shows a job that it has accepted.
SETTLING_SECONDS = 600.0


def describe_all(
    scheduler_of: SchedulerOf, wanted: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], DescribeAppResponse | Exception | None]:
    """Describe jobs of several schedulers: one batched call for each scheduler, all at the same time.

    Args:
        scheduler_of: gives the scheduler of a name.
        wanted: pairs of a scheduler's name and an app id.

    Returns:
        By pair: the description, None where there is no such job, or the error that kept it from being seen.
    """
    groups: dict[str, list[str]] = {}
    for name, app_id in wanted:
        groups.setdefault(name, []).append(app_id)
    results: dict[tuple[str, str], DescribeAppResponse | Exception | None] = {}

    def look(name: str, app_ids: list[str]) -> None:
        try:
            found = scheduler_of(name).describe_many(app_ids)
            results.update({(name, app_id): found.get(app_id) for app_id in app_ids})
        except Exception as error:
            results.update({(name, app_id): error for app_id in app_ids})

    if len(groups) == 1:
        look(*groups.popitem())
    elif groups:
        import threading

        threads = [threading.Thread(target=look, args=group, daemon=True) for group in groups.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def unreachable(error: Exception) -> AppStatus:
    """Return the status of a job that cannot be seen now."""
    from trainyard.redaction import redact_text

    message = error.message if isinstance(error, TrainyardError) else f"{type(error).__name__}: {error}"
    return AppStatus(AppState.UNREACHABLE, num_restarts=-1, msg=redact_text(message))


def known_end(record: JobRecord | None, error: Exception) -> AppStatus | None:
    """Return how a job ended that cannot be seen now; None if it is not known to have ended."""
    if record is None or record.phase != SUBMITTED or not is_terminal(record.state):
        return None
    note = f"as last seen; {record.scheduler} cannot be asked now: {unreachable(error).msg}"
    return AppStatus(record.state, msg=f"{record.msg} ({note})" if record.msg else note)


def recorded_status(record: JobRecord | None) -> AppStatus | None:
    """Return what the history says of a job that its scheduler does not know; None if that is nothing."""
    if record is None or record.phase not in (INTENT, SUBMITTED, REFUSED):
        return None
    if record.phase != SUBMITTED:
        return AppStatus(AppState.UNSUBMITTED, msg=record.msg or "its submission is under way")
    if is_terminal(record.state):
        note = "as last seen; its scheduler has forgotten the job"
        return AppStatus(record.state, msg=f"{record.msg} ({note})" if record.msg else note)
    if may_still_appear(record):
        return AppStatus(record.state, num_restarts=-1)
    return AppStatus(AppState.UNKNOWN, msg=forgotten(record))


def may_still_appear(record: JobRecord) -> bool:
    """Tell whether a job was accepted so lately that its scheduler may not show it yet."""
    accepted = record.submitted_at or record.created_at
    return record.state is AppState.SUBMITTED and time.time() - accepted < SETTLING_SECONDS


def forgotten(record: JobRecord) -> str:
    """Say that the scheduler does not know a job that it had accepted."""
    return f"its scheduler does not know the job any more; it was last seen {record.state}"


def ended_at(status: AppStatus) -> float | None:
    """Return when a job ended: the last of its replicas' ends, or else now; None if it has not."""
    if not status.is_terminal():
        return None
    ends = [replica.ended_at for replica in status.replicas() if replica.ended_at is not None]
    return max(ends) if ends else time.time()


def note(history: History, seen: Iterable[tuple[str, AppStatus]]) -> None:
    """Keep the states that were seen. A history that cannot be written does not stand in the way."""
    observations = [
        (handle, status.state, "" if status.msg == "<NONE>" else status.msg, ended_at(status))
        for handle, status in seen
        if status.state is not AppState.UNREACHABLE
    ]
    try:
        history.observe(observations)
    except StateStoreError:
        return


def reconcile(history: History, scheduler_of: SchedulerOf, records: list[JobRecord]) -> None:
    """Settle the submissions whose process died in between.

    A job that its scheduler knows is adopted; one that it does not know was never submitted. One that
    cannot be looked for now stays as it is.
    """
    dead = [record for record in records if record.phase == INTENT and _submitter_is_gone(record)]
    if not dead:
        return
    found = describe_all(scheduler_of, {(r.scheduler, r.app_id) for r in dead if r.app_id})
    for record in dead:
        response = found.get((record.scheduler, record.app_id))
        if isinstance(response, Exception):
            continue
        try:
            _settle(history, record, response)
        except StateStoreError:
            return


def _settle(history: History, record: JobRecord, response: DescribeAppResponse | None) -> None:
    from trainyard.runner.submission import INTERRUPTED

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
        msg="" if status.msg == "<NONE>" else status.msg,
        ended_at=ended_at(status),
    )


def _submitter_is_gone(record: JobRecord) -> bool:
    from trainyard.system.identity import Process, host_name

    if record.host != host_name():
        return time.time() - record.created_at > LONGEST_REMOTE_SUBMISSION
    submitter = Process.parse(record.submitter)
    return submitter is None or not submitter.is_alive()


def refresh(history: History, scheduler_of: SchedulerOf, records: list[JobRecord]) -> None:
    """Bring the states of records up to date, in place: one batched call for each scheduler.

    What has ended is not asked for again. A job that cannot be seen now gets the state UNREACHABLE here,
    while the history keeps the last one that was seen.
    """
    open_ones = [r for r in records if r.phase == SUBMITTED and not is_terminal(r.state)]
    found = describe_all(scheduler_of, {_key(r) for r in open_ones if r.state is not AppState.UNKNOWN})
    seen: list[tuple[str, AppStatus]] = []
    for record in open_ones:
        if _key(record) not in found:
            continue
        response = found[_key(record)]
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
        record.state, record.msg = status.state, "" if status.msg == "<NONE>" else status.msg
        record.ended_at = ended_at(status)
    note(history, seen)


def _key(record: JobRecord) -> tuple[str, str]:
    return record.scheduler, record.app_id


def describe_handles(
    scheduler_of: SchedulerOf, handles: Iterable[str]
) -> dict[str, DescribeAppResponse | Exception | None]:
    """Describe jobs by handle; see `describe_all`."""
    parsed = {handle: parse_app_handle(handle) for handle in handles}
    pairs = {handle: (p.scheduler_backend, p.app_id) for handle, p in parsed.items()}
    found = describe_all(scheduler_of, dict.fromkeys(pairs.values()))
    return {handle: found[pair] for handle, pair in pairs.items()}
