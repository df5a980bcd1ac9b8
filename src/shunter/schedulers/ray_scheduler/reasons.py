"""Map Ray's record and the driver's state document to our states and to reasons."""

from __future__ import annotations

import time
from typing import Any

from shunter.specs.status import NONE, AppState, ReplicaStatus, RoleStatus, is_terminal

Job = dict[str, Any]

#: https://docs.ray.io/en/latest/cluster/running-applications/job-submission/doc/ray.job_submission.JobStatus.html
_STATES = {
    "PENDING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "STOPPED": AppState.CANCELLED,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}
#: `JobErrorType` of ray.dashboard.modules.job.common, where the driver could not say anything itself.
_ERRORS = {
    "RUNTIME_ENV_SETUP_FAILURE": "its runtime environment could not be made",
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": "Ray could not start its driver in time",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": "Ray could not start its driver",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": "there is no node for its driver",
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE": "its driver failed",
    "JOB_SUPERVISOR_ACTOR_DIED": "the node of its driver was lost",
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": "its driver could not be started",
}
_WAITING = ("waiting", "placing")
LONGEST_MESSAGE = 2000
#: Seconds that a driver may take until it has written its state document for the first time.
DRIVER_SECONDS = 30.0


def state_of(job: Job, document: dict[str, Any] | None = None) -> AppState:
    """Return a job's state. A status that is not known counts as open: UNKNOWN.

    Args:
        job: Ray's record of it.
        document: the driver's state document.
    """
    state = _STATES.get(str(job.get("status", "")), AppState.UNKNOWN)
    if document is None:
        return AppState.PENDING if state is AppState.RUNNING and starts(job) else state
    if state is AppState.RUNNING and document.get("phase") in _WAITING:
        return AppState.PENDING
    if state is AppState.FAILED and document.get("state") == AppState.CANCELLED.name:
        return AppState.CANCELLED
    return state


def starts(job: Job) -> bool:
    """Tell whether the driver of a job of ours may not have written its state document yet."""
    started = seconds(job.get("start_time")) or 0.0
    ours = any(str(key).startswith("shunter.") for key in job.get("metadata") or {})
    return ours and time.time() - started < DRIVER_SECONDS


def message_of(job: Job, document: dict[str, Any] | None) -> str:
    """Return why a job is in its state; "" if the state says it all."""
    status = str(job.get("status", ""))
    said = str((document or {}).get("msg") or "")
    if status not in _STATES:
        return f"Ray says {status or 'nothing'} of it, which this version does not know"
    if status == "STOPPED":
        return said or "stopped"
    if status == "FAILED":
        return said or _failure(job)
    if status == "PENDING" or (status == "RUNNING" and document is None and starts(job)):
        return str(job.get("message") or "") if status == "PENDING" else "its driver is starting"
    return said


def _failure(job: Job) -> str:
    kind, text = str(job.get("error_type") or ""), str(job.get("message") or "").strip()
    what = _ERRORS.get(kind, "" if kind in ("", "JOB_ENTRYPOINT_COMMAND_ERROR") else kind)
    lines = [line for line in text.splitlines() if line.strip()]
    detail = "\n".join(lines[-10:])[-LONGEST_MESSAGE:]
    return f"{what}: {detail}" if what and detail else what or detail


def role_statuses(
    job: Job, document: dict[str, Any] | None, layout: list[tuple[str, int]]
) -> list[RoleStatus]:
    """Return the states of a job's replicas: the driver's, or else what follows from the job's state.

    Args:
        job: Ray's record of it.
        document: the driver's state document; None before there is one.
        layout: its roles, and how many replicas each has.
    """
    state = state_of(job, document)
    if document is not None and document.get("roles"):
        return [
            RoleStatus(role["role"], [_replica(role["role"], item, job, state) for item in role["replicas"]])
            for role in document["roles"]
        ]
    shown = state if is_terminal(state) else AppState.PENDING
    return [RoleStatus(name, [ReplicaStatus(k, shown, name) for k in range(count)]) for name, count in layout]


def _replica(role: str, item: dict[str, Any], job: Job, app_state: AppState) -> ReplicaStatus:
    state = AppState.__members__.get(str(item.get("state")), AppState.UNKNOWN)
    reason, ended_at = str(item.get("reason") or ""), item.get("ended_at")
    if is_terminal(app_state) and not is_terminal(state):  # the driver was killed before it could say so
        state = AppState.CANCELLED if app_state is AppState.CANCELLED else AppState.FAILED
        reason = reason or "it ended with its driver"
        ended_at = ended_at or seconds(job.get("end_time"))
    return ReplicaStatus(
        int(item["id"]),
        state,
        role,
        hostname=str(item.get("hostname") or ""),
        structured_error_msg=str(item.get("structured") or NONE),
        exit_code=item.get("exit_code"),
        reason=reason,
        notes=[str(note) for note in item.get("notes") or ()],
        restarts=int(item.get("restarts") or 0),
        started_at=item.get("started_at"),
        ended_at=ended_at,
    )


def seconds(milliseconds: Any) -> float | None:
    """Return one of Ray's times in seconds since the epoch; None without one."""
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) and milliseconds > 0 else None
