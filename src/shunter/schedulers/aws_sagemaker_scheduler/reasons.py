"""Why a job is in its state: SageMaker's answer is mapped to a reason, which gives state and message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shunter.specs.status import AppState, is_terminal

CANCELLED = "Stopped"
WAITING = "waiting"
#: State and message by reason, which is SageMaker's status, or its secondary status where that says more. The
#: message of failures is SageMaker's own, where it gives one.
_MEANINGS: dict[str, tuple[AppState, str]] = {
    "Completed": (AppState.SUCCEEDED, ""),
    "Failed": (AppState.FAILED, "failed"),
    "Stopping": (AppState.RUNNING, "is being stopped"),
    CANCELLED: (AppState.CANCELLED, "cancelled"),
    "Deleting": (AppState.UNKNOWN, "is being deleted"),
    "MaxRuntimeExceeded": (AppState.FAILED, "ran longer than max_run and was stopped"),
    "MaxWaitTimeExceeded": (AppState.FAILED, "waited and ran longer than max_wait and was stopped"),
    "MaxPendingTimeExceeded": (AppState.FAILED, "no instances became available within max_pending"),
    "Training": (AppState.RUNNING, ""),
    "Uploading": (AppState.RUNNING, ""),
    "Interrupted": (AppState.PENDING, "its spot instances were taken back; it waits for others"),
    WAITING: (AppState.PENDING, "waits"),
}
_LIMITS = ("MaxRuntimeExceeded", "MaxWaitTimeExceeded", "MaxPendingTimeExceeded")
_EXIT_CODE = re.compile(r"exit code:? (\d+)", re.I)


def reason_of(job: Mapping[str, Any]) -> str:
    """Return the reason of a job as SageMaker describes or lists it."""
    status, secondary = job.get("TrainingJobStatus"), job.get("SecondaryStatus", "")
    if status in ("Completed", "Failed", "Stopping", "Deleting"):
        return str(status)
    if status == "Stopped":
        return secondary if secondary in _LIMITS else CANCELLED
    if not secondary:  # lists have none
        return "Training"
    return secondary if secondary in ("Training", "Uploading", "Interrupted") else WAITING


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
