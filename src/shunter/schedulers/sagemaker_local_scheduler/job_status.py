"""A training job's status ladder: what the service would tell of the job, beside the supervisor's state.

The steps and their messages are those of the service:
https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_SecondaryStatusTransition.html
"""

from __future__ import annotations

from typing import Any

#: The statuses in which a job has ended.
TERMINAL = frozenset({"Completed", "Failed", "Stopped"})
LONGEST_REASON = 1024

MESSAGES = {
    "Starting": "Preparing the instances for training",
    "Downloading": "Downloading the training image and the input data",
    "Training": "Training image download completed. Training in progress.",
    "Interrupted": "Training job interrupted: its spot instances were reclaimed",
    "Restarting": "Restarting the training job after an internal error",
    "Uploading": "Uploading generated training model",
    "Stopping": "Stopping the training job",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "MaxWaitTimeExceeded": "Training job exceeded MaxWaitTimeInSeconds provided",
    "Completed": "Training job completed",
    "Failed": "Training job failed",
}

#: A job's status: part of its state document.
Status = dict[str, Any]


def first_status(now: float) -> Status:
    """Return the status of a new job at a time in seconds since the epoch."""
    status = {
        "status": "InProgress",
        "secondary": "",
        "transitions": [],
        "failure_reason": "",
        "created_at": now,
        "modified_at": now,
        "training_start": None,
        "training_end": None,
        "training_seconds": 0.0,
        "attempt_start": None,
        "artifacts": "",
        "metrics": [],
    }
    advance(status, "Starting", now)
    return status


def advance(status: Status, secondary: str, now: float, message: str = "") -> None:
    """Move a job to another step, in place."""
    text = message or MESSAGES.get(secondary, "")
    steps = status["transitions"]
    status["modified_at"] = now
    if steps and steps[-1]["Status"] == secondary:
        steps[-1]["StatusMessage"] = text
        return
    if steps:
        steps[-1].setdefault("EndTime", now)
    steps.append({"Status": secondary, "StartTime": now, "StatusMessage": text})
    status["secondary"] = secondary


def end_attempt(status: Status, now: float) -> None:
    """Add the time of an attempt that has ended, if one was under way, in place."""
    if status["attempt_start"] is not None:
        status["training_seconds"] += max(0.0, now - status["attempt_start"])
        status["attempt_start"] = None


def finish(
    status: Status, end: str, now: float, *, secondary: str = "", reason: str = "", message: str = ""
) -> None:
    """End a job, in place. Does nothing if it has ended.

    Args:
        status: the job's.
        end: how it ends: one of `TERMINAL`.
        now: seconds since the epoch.
        secondary: its last step, if that has a different name.
        reason: why it failed.
        message: of its last step.
    """
    if status["status"] in TERMINAL:
        return
    end_attempt(status, now)
    advance(status, secondary or end, now, message or (reason if end == "Failed" else ""))
    status["transitions"][-1]["EndTime"] = now
    status["status"] = end
    status["failure_reason"] = reason[:LONGEST_REASON]
    status["training_end"] = now if status["training_start"] is not None else None
