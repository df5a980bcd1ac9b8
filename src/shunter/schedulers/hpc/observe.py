"""Describe a job, from the queue's answer and the records in the job's folder. Pure functions.

A job that is missing has not ended: only an explicit terminal state in the queue or the accounting, or an
exit record that our own script left, ends a job. What is not known counts as open.
"""

from __future__ import annotations

from collections.abc import Sequence

from shunter.schedulers.hpc.queries import NativeJob
from shunter.schedulers.hpc.shared_folder import AttemptRecord, SharedJob
from shunter.schedulers.responses import DescribeAppResponse
from shunter.specs.status import (
    NONE,
    AppState,
    EarlierAttempt,
    ReplicaStatus,
    RoleStatus,
    first_report,
    is_terminal,
)
from shunter.system.processes import signal_name

#: How long a job may be missing from the queue after its submission: accounting lags.
LAG_SECONDS = 60.0
#: How much later a submission that got no answer may still reach the queue.
FORGOTTEN_SECONDS = 600.0


def describe(
    app_id: str, native: Sequence[NativeJob], job: SharedJob | None, problem: str = "", now: float = 0.0
) -> DescribeAppResponse | None:
    """Describe a job; None if neither the queue nor the storage knows it.

    Args:
        app_id: the job.
        native: what the queue says of its submissions, oldest first; empty if it does not list them.
        job: what its folder tells, if there is one.
        problem: why the queue did not answer; "" if it did.
        now: seconds since the epoch.
    """
    if job is None and not native and problem:
        return DescribeAppResponse(app_id, AppState.UNREACHABLE, msg=problem)
    if job is None and not problem and all(_is_forgotten(item, app_id) for item in native):
        return None  # it never was, or its folder has been deleted; the accounting never forgets
    if job is not None and not problem and not native and _never_was(job, now):
        return None
    state, reason = job_state(native, job, problem, now)
    roles = _roles(native[-1] if native else None, job, state)
    return DescribeAppResponse(
        app_id=app_id,
        state=state,
        num_restarts=_restarts(native, job),
        msg=_with_retries(
            job,
            state,
            reason or _failed_replica(roles) or _failed_script(job, native, state) or _hung_replica(roles),
        )
        or NONE,
        structured_error_msg=first_report(roles),
        roles_statuses=roles,
        metadata=_metadata(native),
        results=job.document.get("results") if job is not None else None,
        started_at=started_at(native, job),
        ended_at=ended_at(native, job) if is_terminal(state) else None,
    )


def started_at(native: Sequence[NativeJob], job: SharedJob | None) -> float | None:
    """Return when the first replica began to run, by its own record or else by the queue."""
    starts = [record.started_at for record in _records(job)] or [item.started_at for item in native]
    return min(filter(None, starts), default=None)


def ended_at(native: Sequence[NativeJob], job: SharedJob | None) -> float | None:
    """Return when a job ended: by the queue, unless every replica has recorded its end."""
    last = list(job.replicas.values()) if job is not None else []
    ends = [record.ended_at for record in last if record.ended_at]
    if job is None or len(ends) < sum(count for _, count in job.layout):
        ends += [item.ended_at for item in native if item.ended_at]
    return max(ends, default=None)


def _records(job: SharedJob | None) -> list[AttemptRecord]:
    if job is None:
        return []
    earlier = [record for records in job.earlier.values() for record in records]
    return [record for record in (*earlier, *job.replicas.values()) if record.started_at]


def _is_forgotten(item: NativeJob, app_id: str) -> bool:
    """Tell whether a submission is one of ours that has ended; without a folder its job has been deleted."""
    return is_terminal(item.state) and item.app_id == app_id


def _never_was(job: SharedJob, now: float) -> bool:
    """Tell whether a submission failed without an answer: the queue has never had the job.

    The queue, which answers now, does not list its name. If it had been there and gone, it would have an id,
    or records of a start.
    """
    created = float(job.document.get("created_at", now))
    has_left_something = job.native_ids or job.replicas or job.submission is not None or job.cancelled_by
    return not has_left_something and now - created > FORGOTTEN_SECONDS


def job_state(
    native: Sequence[NativeJob], job: SharedJob | None, problem: str, now: float
) -> tuple[AppState, str]:
    """Return the state of a job, and why it is in that state."""
    live = [item for item in native if not is_terminal(item.state)]
    if live:
        current = next((item for item in live if item.state == AppState.RUNNING), live[0])
        return current.state, current.reason
    ended = state_by_records(job) if job is not None else None
    if ended is None and not problem and _is_undecided(job, native):
        return AppState.PENDING, "it ended; whether it is restarted is not decided yet"
    if problem:
        return ended or (AppState.UNREACHABLE, problem)
    if job is not None and job.cancelled_by:  # and the queue, which answered, lists no live submission of it
        return AppState.CANCELLED, f"cancelled by {job.cancelled_by}"
    if job is not None and job.cancelled and ended is not None:  # the queue may call cancelled tasks failed
        return ended
    if native:
        return _native_end(native, job, ended)
    if ended is not None:
        return ended
    assert job is not None
    if _was_stopped(job):
        return AppState.CANCELLED, "it was stopped, and the queue no longer lists it"
    created = float(job.document.get("created_at", now))
    if job.submission is None and not job.replicas and now - created < LAG_SECONDS:
        return AppState.SUBMITTED, ""
    return AppState.UNKNOWN, "the queue no longer lists it, and it left no exit record"


def _is_undecided(job: SharedJob | None, native: Sequence[NativeJob]) -> bool:
    """Tell whether a job that has run may be restarted."""
    if job is None or not job.may_start_again:
        return False
    return bool(native or job.replicas or job.submission is not None)


def _native_end(
    native: Sequence[NativeJob], job: SharedJob | None, ended: tuple[AppState, str] | None
) -> tuple[AppState, str]:
    """Return how a job ended, where the queue says that all its submissions have ended."""
    # links of a chain that had nothing left to do end with success
    worst = [item for item in native if item.state != AppState.SUCCEEDED]
    if not worst:
        return ended if ended is not None else (AppState.SUCCEEDED, native[-1].reason)
    if job is not None and job.chain > 1 and ended is not None and ended[0] == AppState.SUCCEEDED:
        return ended
    last = worst[-1]
    if last.is_lost and ended is not None:
        return ended
    by_limit = ended[1] if ended is not None and ended[0] == last.state else ""
    return last.state, last.reason or by_limit


def _was_stopped(job: SharedJob) -> bool:
    """Tell whether all that a job has started was asked to stop, and did."""
    final = [job.submission] if job.submission is not None else list(job.replicas.values())
    enough = job.submission is not None or len(final) == sum(count for _, count in job.layout)
    return enough and all(record.why == "stopped" and _is_final(record, job) for record in final)


def state_by_records(job: SharedJob) -> tuple[AppState, str] | None:
    """Return how a job ended by the records in its folder; None if they do not tell an end."""
    wanted = [(role, k) for role, count in job.layout for k in range(count) if (role, k) not in job.cancelled]
    records = [job.replicas[key] for key in wanted if key in job.replicas]
    if job.submission is not None:
        final = job.submission
        if not _is_final(final, job):
            return None
    elif not wanted:
        return AppState.CANCELLED, _cancelled_replicas(job)
    elif not records or len(records) < len(wanted) or not all(_is_final(record, job) for record in records):
        return None
    else:
        final = next((record for record in records if record.code), records[-1])
    if final.why == "time-limit" and not job.may_start_again:
        return AppState.FAILED, "the time limit was reached"
    if job.cancelled_by:
        return AppState.CANCELLED, f"cancelled by {job.cancelled_by}"
    if job.may_start_again and any(record.code != 0 for record in [final, *job.replicas.values()]):
        return None  # what starts replicas may end with 0 when the queue stops the job
    if final.code == 0 and job.cancelled:
        return AppState.CANCELLED, _cancelled_replicas(job)
    if final.code == 0:
        return AppState.SUCCEEDED, ""
    if final.why == "stopped":
        return None  # the queue stopped it, and may start it again
    return AppState.FAILED, ""


def _cancelled_replicas(job: SharedJob) -> str:
    """Say which replicas of an array were cancelled, and by whom."""
    (role, k), who = min(job.cancelled.items())
    rest = len(job.cancelled) - 1
    return f"{role}/{k}{f' and {rest} more' if rest else ''}: cancelled by {who}"


def _is_final(record: AttemptRecord, job: SharedJob) -> bool:
    """Tell whether a record is a final end, after which no other submission of the chain continues."""
    goes_on = record.why != "ended" and record.link + 1 < job.chain and not job.cancelled_by
    return record.code is not None and not goes_on


def _roles(native: NativeJob | None, job: SharedJob | None, state: AppState) -> list[RoleStatus]:
    if job is None:
        return []
    hosts = native.hosts if native is not None else []
    if len(hosts) != sum(count for _, count in job.layout):
        hosts = []  # which of them runs which replica is not known
    # so those that were stopped, or never started, did not fail
    has_failed = any(record.code and record.why == "ended" for record in job.replicas.values())
    was_stopped = state == AppState.CANCELLED or has_failed
    tasks = native.replicas if native is not None else {}
    # replicas that belong together wait together for the queue to start them again; an array's do not
    starts_again = state == AppState.PENDING and native is not None and not tasks
    roles = []
    number = 0
    for role, count in job.layout:
        replicas = []
        for k in range(count):
            said = tasks.get(number)
            record = job.replicas.get((role, k))
            host = hosts[number] if hosts else ""
            status = _replica(role, k, record, said, state, host, was_stopped, starts_again)
            if (role, k) in job.cancelled and _has_left(record, said, state):
                status.state, status.reason = AppState.CANCELLED, f"cancelled by {job.cancelled[role, k]}"
            if status.state == AppState.FAILED:
                status.structured_error_msg = job.reports.get((role, k), NONE)
            status.earlier = [_earlier(record) for record in job.earlier.get((role, k), ())]
            replicas.append(status)
            number += 1
        roles.append(RoleStatus(role, replicas))
    return roles


def _has_left(record: AttemptRecord | None, said: NativeJob | None, state: AppState) -> bool:
    """Tell whether a replica that was cancelled has stopped, or will not start."""
    if record is not None and record.code is not None:
        return record.code != 0
    is_gone = record is None and (said is None or is_terminal(said.state))
    return is_gone or is_terminal(state)


def _earlier(record: AttemptRecord) -> EarlierAttempt:
    """Return an attempt after which there was another; its log is in separate files, see `logs.py`."""
    start, end = record.started_at, record.ended_at
    reason = reason_of_exit(record)
    return EarlierAttempt(record.attempt, start, end, record.code, reason, f"{record.attempt}:0.0.0")


def _replica(
    role: str,
    k: int,
    record: AttemptRecord | None,
    said: NativeJob | None,
    state: AppState,
    host: str,
    was_stopped: bool,
    starts_again: bool,
) -> ReplicaStatus:
    status = ReplicaStatus(k, AppState.PENDING, role, hostname=host)
    if said is not None:
        status.hostname = next(iter(said.hosts), status.hostname)
        status.reason, status.exit_code = said.reason, said.exit_code
    if record is not None:
        status.hostname = record.host or status.hostname
        status.restarts = record.attempt
        status.started_at, status.ended_at = record.started_at, record.ended_at
        if record.code is not None:
            status.exit_code = record.code
            status.state = AppState.SUCCEEDED if record.code == 0 else AppState.FAILED
            if record.code != 0 and record.why == "stopped" and was_stopped:
                status.state = AppState.CANCELLED
            status.reason = reason_of_exit(record) or status.reason
            is_over = record.code == 0 or record.why == "ended"
            if starts_again or (state == AppState.RUNNING and not is_over):
                status.state = AppState.PENDING
        elif not starts_again:
            status.state = AppState.RUNNING
            status.reason = record.hung or status.reason
    if said is not None and (record is None or record.code is None):
        status.state = said.state
    if is_terminal(state) and not is_terminal(status.state):
        status.state = state  # it left no exit record: it was killed, or never started
        if record is not None and state != AppState.SUCCEEDED:
            status.reason = status.reason or "it was killed before it could record how it ended"
        elif record is None and said is None and was_stopped:
            status.state, status.reason = AppState.CANCELLED, "it had not started"
    elif state in (AppState.UNREACHABLE, AppState.SUSPENDED) and not is_terminal(status.state):
        status.state = state
    return status


def reason_of_exit(record: AttemptRecord) -> str:
    """Return in words how a replica ended."""
    if record.code is None or record.code == 0:
        return "stopped at the time limit" if record.why == "time-limit" else ""
    text = f"exit code {record.code}"
    if record.reason:
        return record.reason
    if record.code > 128:
        name = signal_name(record.code - 128)
        text = f"signal {name}" if name.startswith("SIG") else text
    return {
        "time-limit": f"{text} after the warning of the time limit",
        "stopped": f"{text} after a stop",
    }.get(record.why, text)


def _failed_replica(roles: Sequence[RoleStatus]) -> str:
    """Return the reason of the first replica that failed by itself."""
    failed = [r for role in roles for r in role.replicas if r.state == AppState.FAILED and r.reason]
    failed.sort(key=lambda replica: replica.ended_at or float("inf"))
    return f"{failed[0].role}/{failed[0].id}: {failed[0].reason}" if failed else ""


def _hung_replica(roles: Sequence[RoleStatus]) -> str:
    """Return a sentence about the first replica that runs and hangs; "" if none does."""
    running = [r for role in roles for r in role.replicas if r.state == AppState.RUNNING and r.reason]
    return f"{running[0].role}/{running[0].id}: {running[0].reason}" if running else ""


def _with_retries(job: SharedJob | None, state: AppState, reason: str) -> str:
    """Add to a reason what became of the last failure."""
    last = job.retries[-1] if job is not None and job.retries else None
    if last is None or state in (AppState.SUCCEEDED, AppState.CANCELLED):
        return reason
    if bool(last.get("again")) == (state == AppState.FAILED):
        return reason
    return "; ".join(filter(None, [reason, str(last["text"])]))


def _failed_script(job: SharedJob | None, native: Sequence[NativeJob], state: AppState) -> str:
    """Return how the native script ended, if no replica says more; its output is in the job's folder."""
    if state != AppState.FAILED:
        return ""
    if job is not None and job.submission is not None and job.submission.code:
        return f"the script of the job: {reason_of_exit(job.submission)}"
    codes = [item.exit_code for item in native if item.exit_code]
    return f"the script of the job: exit code {codes[-1]}" if codes else ""


def _restarts(native: Sequence[NativeJob], job: SharedJob | None) -> int:
    by_queue = max((item.restarts for item in native), default=0)
    return max(by_queue, job.attempts - 1 if job is not None else 0)


def _metadata(native: Sequence[NativeJob]) -> dict[str, str]:
    if not native:
        return {}
    return {
        "native_id": ",".join(item.native_id for item in native),
        "native_state": native[-1].native_state,
    }
