"""Describe a job, from the queue's answer and the records in the job's folder. Pure functions.

A job that is missing has not ended: only an explicit terminal state in the queue or the accounting, or an
exit record that our own script left, ends a job. What is not known counts as open.
"""

from __future__ import annotations

import signal
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
    if not problem and _is_none(app_id, native, job, now):
        return None
    state, reason = job_state(native, job, problem, now)
    roles = _roles(native[-1] if native else None, job, state)
    reason = (
        reason
        or _first_reason(roles, AppState.FAILED)
        or _failed_script(job, native, state)
        or _first_reason(roles, AppState.RUNNING)  # it hangs
    )
    by_queue = max((item.restarts for item in native), default=0)
    response = DescribeAppResponse(
        app_id=app_id,
        state=state,
        num_restarts=max(by_queue, job.attempts - 1 if job is not None else 0),
        msg=_with_retries(job, state, reason) or NONE,
        structured_error_msg=first_report(roles),
        roles_statuses=roles,
        results=job.document.get("results") if job is not None else None,
        started_at=started_at(native, job),
        ended_at=ended_at(native, job) if is_terminal(state) else None,
    )
    if native:
        ids = ",".join(item.native_id for item in native)
        response.metadata = {"native_id": ids, "native_state": native[-1].native_state}
    return response


def started_at(native: Sequence[NativeJob], job: SharedJob | None) -> float | None:
    """Return when the first replica began to run, by its own record or else by the queue."""
    starts = job.starts if job is not None else []
    return min(starts or [item.started_at for item in native if item.started_at], default=None)


def ended_at(native: Sequence[NativeJob], job: SharedJob | None) -> float | None:
    """Return when a job ended: by the queue, unless every replica has recorded its end."""
    ends = [record.ended_at for record in job.replicas.values() if record.ended_at] if job is not None else []
    if job is None or len(ends) < job.count:
        ends += [item.ended_at for item in native if item.ended_at]
    return max(ends, default=None)


def _is_none(app_id: str, native: Sequence[NativeJob], job: SharedJob | None, now: float) -> bool:
    """Tell whether there is no such job, where the queue answers.

    One without a folder never was or has been deleted, if the queue lists nothing but its end: accounting
    never forgets. One with a folder was submitted without an answer, if the queue does not list its name. If
    it had been there and gone, it would have an id, or records of a start.
    """
    if job is None:
        return all(is_terminal(item.state) and item.app_id == app_id for item in native)
    if native or job.native_ids or job.has_run or job.cancelled_by:
        return False
    return now - float(job.document.get("created_at", now)) > FORGOTTEN_SECONDS


def job_state(
    native: Sequence[NativeJob], job: SharedJob | None, problem: str, now: float
) -> tuple[AppState, str]:
    """Return the state of a job, and why it is in that state."""
    live = [item for item in native if not is_terminal(item.state)]
    if live:
        current = next((item for item in live if item.state == AppState.RUNNING), live[0])
        return current.state, current.reason
    ended = state_by_records(job) if job is not None else None
    is_undecided = job is not None and job.may_start_again and (native or job.has_run)
    if ended is None and not problem and is_undecided:
        return AppState.PENDING, "it ended; whether it is restarted is not decided yet"
    if problem:
        return ended or (AppState.UNREACHABLE, problem)
    if job is not None and job.cancelled_by:  # and the queue, which answered, lists no live submission of it
        return AppState.CANCELLED, job.cancellation
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
    if not job.has_run and now - created < LAG_SECONDS:
        return AppState.SUBMITTED, ""
    return AppState.UNKNOWN, "the queue no longer lists it, and it left no exit record"


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
    enough = job.submission is not None or len(final) == job.count
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
        return AppState.CANCELLED, job.cancellation
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
    # so those that were stopped, or never started, did not fail
    has_failed = any(record.code and record.why == "ended" for record in job.replicas.values())
    was_stopped = state == AppState.CANCELLED or has_failed
    tasks = native.replicas if native is not None else {}
    # replicas that belong together wait together for the queue to start them again; an array's do not
    starts_again = state == AppState.PENDING and native is not None and not tasks
    hosts = native.hosts if native is not None and len(native.hosts) == job.count else []
    roles = []
    number = 0
    for role, count in job.layout:
        replicas = []
        for k in range(count):
            said, record = tasks.get(number), job.replicas.get((role, k))
            status = ReplicaStatus(k, AppState.PENDING, role)
            is_cancelled = record is not None and _is_cancelled(record, job, was_stopped)
            status.state, status.reason = _replica_state(
                record, said, state, was_stopped, is_cancelled, starts_again
            )
            if said is not None:
                status.exit_code = said.exit_code
            if record is not None:
                status.restarts = record.attempt
                status.started_at, status.ended_at = record.started_at, record.ended_at
                status.exit_code = status.exit_code if record.code is None else record.code
            by_record = record.host if record is not None else ""
            by_queue = next(iter(said.hosts if said is not None else []), "")
            status.hostname = by_record or by_queue or (hosts[number] if hosts else "")
            if (role, k) in job.cancelled and _has_left(record, said, state):
                status.state, status.reason = AppState.CANCELLED, f"cancelled by {job.cancelled[role, k]}"
            if status.state == AppState.FAILED:
                status.structured_error_msg = job.reports.get((role, k), NONE)
            # the log of an attempt after which there was another one is in separate files, see `logs.py`
            status.earlier = [
                EarlierAttempt(
                    each.attempt,
                    each.started_at,
                    each.ended_at,
                    each.code,
                    reason_of_exit(each),
                    f"{each.attempt}:0.0.0",
                )
                for each in job.earlier.get((role, k), ())
            ]
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


def _is_cancelled(record: AttemptRecord, job: SharedJob, was_stopped: bool) -> bool:
    """Tell whether a replica that ended with an error was stopped, or killed when its job was cancelled."""
    if record.why == "stopped" and was_stopped:
        return True
    # the signal may reach the program before the script that keeps the record
    was_killed = record.code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    return was_killed and record.why != "time-limit" and bool(job.cancelled_by)


def _replica_state(
    record: AttemptRecord | None,
    said: NativeJob | None,
    state: AppState,
    was_stopped: bool,
    is_cancelled: bool,
    starts_again: bool,
) -> tuple[AppState, str]:
    """Return the state of a replica and why it is in it, by its last record and what the queue says of it."""
    reason = said.reason if said is not None else ""
    if record is not None and record.code is not None:
        reason = reason_of_exit(record) or reason
        is_over = record.code == 0 or record.why == "ended"
        if starts_again or (state == AppState.RUNNING and not is_over):
            return AppState.PENDING, reason
        if record.code == 0:
            return AppState.SUCCEEDED, reason
        return AppState.CANCELLED if is_cancelled else AppState.FAILED, reason
    is_running = record is not None and not starts_again
    if record is not None and is_running:
        reason = record.hung or reason
    own_state = AppState.RUNNING if is_running else AppState.PENDING
    own_state = said.state if said is not None else own_state
    if is_terminal(own_state):
        return own_state, reason
    if is_terminal(state):  # it left no exit record: it was killed, or never started
        if record is None and said is None and was_stopped:
            return AppState.CANCELLED, "it had not started"
        if record is not None and state != AppState.SUCCEEDED:
            reason = reason or "it was killed before it could record how it ended"
        return state, reason
    return (state if state in (AppState.UNREACHABLE, AppState.SUSPENDED) else own_state), reason


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


def _first_reason(roles: Sequence[RoleStatus], state: AppState) -> str:
    """Return the reason of the first replica that came into a state by itself; "" if there is none."""
    replicas = [r for role in roles for r in role.replicas if r.state == state and r.reason]
    replicas.sort(key=lambda replica: replica.ended_at or float("inf"))
    return f"{replicas[0].role}/{replicas[0].id}: {replicas[0].reason}" if replicas else ""


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
