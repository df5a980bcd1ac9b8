"""Why a job is in its state: what SageMaker says of it is mapped to a reason here, and all else follows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainyard.specs.status import AppState

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

STATE_OF_REASON: dict[str, AppState] = {
    SUCCEEDED: AppState.SUCCEEDED,
    RUNNING: AppState.RUNNING,
    WAITING: AppState.PENDING,
    STOPPING: AppState.RUNNING,
    INTERRUPTED: AppState.PENDING,
    CANCELLED: AppState.CANCELLED,
    MAX_RUN: AppState.FAILED,
    MAX_WAIT: AppState.FAILED,
    MAX_PENDING: AppState.FAILED,
    PROGRAM: AppState.FAILED,
    REQUEST: AppState.FAILED,
    CAPACITY: AppState.FAILED,
    SERVICE: AppState.FAILED,
    FAILED: AppState.FAILED,
    DELETING: AppState.UNKNOWN,
}

_OF_SECONDARY = {
    "MaxRuntimeExceeded": MAX_RUN,
    "MaxWaitTimeExceeded": MAX_WAIT,
    "MaxPendingTimeExceeded": MAX_PENDING,
}
_ACTIVE = {"Training": RUNNING, "Uploading": RUNNING, "Interrupted": INTERRUPTED}
# FailureReason begins with who is to blame.
_OF_FAILURE = [
    (PROGRAM, re.compile(r"^AlgorithmError")),
    (CAPACITY, re.compile(r"^CapacityError|insufficient capacity", re.I)),
    (REQUEST, re.compile(r"^ClientError")),
    (SERVICE, re.compile(r"^InternalServerError")),
]
_EXIT_CODE = re.compile(r"exit code:? (\d+)", re.I)
_TEXTS = {
    RUNNING: "",
    SUCCEEDED: "",
    WAITING: "waits",
    STOPPING: "is being stopped",
    INTERRUPTED: "its spot instances were taken back; it waits for others",
    CANCELLED: "cancelled",
    MAX_RUN: "ran longer than max_run and was stopped",
    MAX_WAIT: "waited and ran longer than max_wait and was stopped",
    MAX_PENDING: "no instances could be had within max_pending",
    DELETING: "is being deleted",
}


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


def message_of(job: Mapping[str, Any]) -> str:
    """Return the reason in words."""
    reason = reason_of(job)
    failure = str(job.get("FailureReason") or "").strip()
    if STATE_OF_REASON[reason] == AppState.FAILED and failure:
        return failure
    text = _TEXTS.get(reason, "failed")
    transitions = job.get("SecondaryStatusTransitions") or []
    last = str(transitions[-1].get("StatusMessage") or "").strip() if transitions else ""
    if reason == WAITING:
        return f"{job.get('SecondaryStatus')}: {last}" if last else str(job.get("SecondaryStatus") or text)
    return text


def exit_code_of(job: Mapping[str, Any]) -> int | None:
    """Return the exit code that the failure speaks of; 0 of a job that succeeded."""
    if job.get("TrainingJobStatus") == "Completed":
        return 0
    found = _EXIT_CODE.search(str(job.get("FailureReason") or ""))
    return int(found[1]) if found else None
