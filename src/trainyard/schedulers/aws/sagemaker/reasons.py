"""Why a job is in its state: SageMaker's answer is mapped to a reason, which gives state and message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainyard.specs.status import AppState, is_terminal

SUCCEEDED = "succeeded"
RUNNING = "running"
WAITING = "waiting"
STOPPING = "stopping"
INTERRUPTED = "interrupted"
CANCELLED = "cancelled"
MAX_RUN = "max_run"
MAX_WAIT = "max_wait"
MAX_PENDING = "max_pending"
PROGRAM = "program"
REQUEST = "request"
CAPACITY = "capacity"
SERVICE = "service"
FAILED = "failed"
DELETING = "deleting"

#: State and message by reason; the message of failures is SageMaker's own, where it gives one.
_MEANINGS: dict[str, tuple[AppState, str]] = {
    SUCCEEDED: (AppState.SUCCEEDED, ""),
    RUNNING: (AppState.RUNNING, ""),
    WAITING: (AppState.PENDING, "waits"),
    STOPPING: (AppState.RUNNING, "is being stopped"),
    INTERRUPTED: (AppState.PENDING, "its spot instances were taken back; it waits for others"),
    CANCELLED: (AppState.CANCELLED, "cancelled"),
    MAX_RUN: (AppState.FAILED, "ran longer than max_run and was stopped"),
    MAX_WAIT: (AppState.FAILED, "waited and ran longer than max_wait and was stopped"),
    MAX_PENDING: (AppState.FAILED, "no instances became available within max_pending"),
    PROGRAM: (AppState.FAILED, "failed"),
    REQUEST: (AppState.FAILED, "failed"),
    CAPACITY: (AppState.FAILED, "failed"),
    SERVICE: (AppState.FAILED, "failed"),
    FAILED: (AppState.FAILED, "failed"),
    DELETING: (AppState.UNKNOWN, "is being deleted"),
}
_OF_SECONDARY = {
    "MaxRuntimeExceeded": MAX_RUN,
    "MaxWaitTimeExceeded": MAX_WAIT,
    "MaxPendingTimeExceeded": MAX_PENDING,
}
_ACTIVE = {"Training": RUNNING, "Uploading": RUNNING, "Interrupted": INTERRUPTED}
# FailureReason begins with the party that is to blame.
_OF_FAILURE = [
    (PROGRAM, re.compile(r"^AlgorithmError")),
    (CAPACITY, re.compile(r"^CapacityError|insufficient capacity", re.I)),
    (REQUEST, re.compile(r"^ClientError")),
    (SERVICE, re.compile(r"^InternalServerError")),
]
_EXIT_CODE = re.compile(r"exit code:? (\d+)", re.I)


def reason_of(job: Mapping[str, Any]) -> str:
    """Return the reason of a job as SageMaker describes or lists it."""
    status, secondary = job.get("TrainingJobStatus"), job.get("SecondaryStatus", "")
    if status == "Completed":
        return SUCCEEDED
    if status == "Failed":
        text = job.get("FailureReason") or ""
        return next((reason for reason, pattern in _OF_FAILURE if pattern.search(text)), FAILED)
    if status == "Stopping":
        return STOPPING
    if status == "Stopped":
        return _OF_SECONDARY.get(secondary, CANCELLED)
    if status == "Deleting":
        return DELETING
    # lists have no secondary status
    return _ACTIVE.get(secondary, WAITING) if secondary else RUNNING


def state_of(job: Mapping[str, Any]) -> AppState:
    """Return the state of a job."""
    return _MEANINGS[reason_of(job)][0]


def is_over(job: Mapping[str, Any]) -> bool:
    """Tell whether a job has ended."""
    return is_terminal(state_of(job))


def message_of(job: Mapping[str, Any]) -> str:
    """Return the reason in words."""
    reason = reason_of(job)
    state, text = _MEANINGS[reason]
    failure = str(job.get("FailureReason") or "").strip()
    if state == AppState.FAILED and failure:
        return failure
    if reason != WAITING:
        return text
    transitions = job.get("SecondaryStatusTransitions") or []
    last = str(transitions[-1].get("StatusMessage") or "").strip() if transitions else ""
    return f"{job.get('SecondaryStatus')}: {last}" if last else str(job.get("SecondaryStatus") or text)


def exit_code_of(job: Mapping[str, Any]) -> int | None:
    """Return the exit code that the failure mentions; 0 for a job that succeeded."""
    if job.get("TrainingJobStatus") == "Completed":
        return 0
    found = _EXIT_CODE.search(str(job.get("FailureReason") or ""))
    return int(found[1]) if found else None
