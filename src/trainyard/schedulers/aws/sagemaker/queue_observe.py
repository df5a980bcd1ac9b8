"""What AWS Batch and SageMaker say of a job that goes through a queue, as states of a job and its replicas.

The queue's service job is what counts; its last attempt's training job tells the details.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from trainyard.schedulers.aws.sagemaker import names, observe
from trainyard.schedulers.aws.sagemaker.queue_request import queue_name
from trainyard.schedulers.aws.sagemaker.reasons import CANCELLED, STATE_OF_REASON, message_of, reason_of
from trainyard.schedulers.base import DescribeAppResponse, ListAppResponse
from trainyard.specs.status import AppState, is_terminal

Job = Mapping[str, Any]

STATE_OF_STATUS: dict[str, AppState] = {
    "SUBMITTED": AppState.PENDING,
    "PENDING": AppState.PENDING,
    "RUNNABLE": AppState.PENDING,
    "SCHEDULED": AppState.PENDING,
    "STARTING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}
_WAITING = {
    "SUBMITTED": "AWS Batch has not looked at it yet",
    "PENDING": "waits in the queue",
    "RUNNABLE": "waits in the queue for its turn and for capacity",
    "SCHEDULED": "SageMaker has it, and looks for instances",
    "STARTING": "has its instances; data and image are fetched",
}
_TIMEOUT = re.compile(r"exceeded|timed? ?out", re.I)
_FROM_SAGEMAKER = "Received status from SageMaker: "


def training_jobs(service: Job) -> list[str]:
    """Return the names of the training jobs of all attempts so far, the oldest first."""
    attempts = [*(service.get("attempts") or []), service.get("latestAttempt") or {}]
    arns = [(attempt.get("serviceResourceId") or {}).get("value", "") for attempt in attempts]
    return list(dict.fromkeys(arn.rpartition("/")[2] for arn in arns if arn))


def request_of(service: Job) -> dict[str, Any]:
    """Return the CreateTrainingJob request that the queue holds; empty if it cannot be read."""
    try:
        request = json.loads(service.get("serviceRequestPayload") or "{}")
    except ValueError:
        return {}
    return request if isinstance(request, dict) else {}


def training_of(service: Job, training: Job | None) -> dict[str, Any]:
    """Return a job as SageMaker would describe it: before there is a training job, from the request."""
    if training is not None:
        return dict(training)
    return {**request_of(service), "TrainingJobStatus": "InProgress", "SecondaryStatus": "Pending"}


def state_of(service: Job, training: Job | None = None) -> AppState:
    """Return the state of a job: Batch calls FAILED what was stopped, too."""
    state = STATE_OF_STATUS.get(service.get("status", ""), AppState.UNKNOWN)
    if state is not AppState.FAILED:
        return state
    if _TIMEOUT.search(str(service.get("statusReason") or "")):
        return AppState.FAILED
    if service.get("isTerminated"):
        return AppState.CANCELLED
    stopped = training is not None and reason_of(training) == CANCELLED
    return AppState.CANCELLED if stopped else AppState.FAILED


def message(service: Job, training: Job | None = None) -> str:
    """Return why a job is in its state."""
    status, said = service.get("status", ""), str(service.get("statusReason") or "")
    state = state_of(service, training)
    if state in (AppState.SUCCEEDED, AppState.UNKNOWN):
        return ""
    if not is_terminal(state):
        text = "is being stopped" if service.get("isTerminated") else _WAITING.get(status, "")
        past = _past(service)
        return "; ".join(filter(None, [text, past if text else "", said if text and said != past else ""]))
    if training is not None and STATE_OF_REASON[reason_of(training)] is state is AppState.FAILED:
        return message_of(training)
    return said.removeprefix(_FROM_SAGEMAKER) or ("cancelled" if state is AppState.CANCELLED else "failed")


def _past(service: Job) -> str:
    """Return how the attempts so far ended, while another one is to come."""
    ended = [attempt for attempt in service.get("attempts") or [] if attempt.get("stoppedAt")]
    if not ended:
        return ""
    most = (service.get("retryStrategy") or {}).get("attempts", 1)
    why = str(ended[-1].get("statusReason") or "").removeprefix(_FROM_SAGEMAKER)
    return f"attempt {len(ended)} of {most} has ended" + (f": {why}" if why else "")


def describe(app_id: str, service: Job, training: Job | None) -> DescribeAppResponse:
    """Return a job as Batch describes it, with what SageMaker says of its last attempt."""
    state = state_of(service, training)
    whole = training_of(service, training)
    response = observe.describe(app_id, whole)
    response.state = state
    response.msg = message(service, training)
    response.num_restarts += max(0, len(training_jobs(service)) - 1)
    response.metadata = {**response.metadata, **_facts(service)}
    response.ui_url = response.ui_url or names.batch_console_url(service.get("jobArn", ""))
    for role in response.roles_statuses:
        for replica in role.replicas:
            replica.state = state
            replica.restarts = response.num_restarts
            if not is_terminal(state):
                replica.exit_code = replica.ended_at = None
    return response


def brief(app_id: str, service: Job) -> DescribeAppResponse:
    """Return a job as the queue's list has it: its state and why, without its replicas."""
    return DescribeAppResponse(
        app_id,
        state_of(service),
        num_restarts=max(0, len(training_jobs(service)) - 1),
        msg=message(service),
        metadata=_facts(service),
    )


def _facts(service: Job) -> dict[str, str]:
    facts: dict[str, Any] = {
        "batch_job": service.get("jobArn") or service.get("jobId"),
        "batch_queue": queue_name(service.get("jobQueue") or ""),
        "batch_status": service.get("status"),
        "batch_share": service.get("shareIdentifier") or service.get("quotaShareName"),
        "batch_priority": service.get("schedulingPriority"),
        "preemptions": (service.get("preemptionSummary") or {}).get("preemptedAttemptCount"),
        "training_jobs": ", ".join(training_jobs(service)),
    }
    for number, attempt in enumerate(service.get("attempts") or [], 1):
        facts[f"attempt_{number}"] = str(attempt.get("statusReason") or "").removeprefix(_FROM_SAGEMAKER)
    return {key: str(value) for key, value in facts.items() if value not in (None, "")}


def listed(queue: str, service: Job, tags: Mapping[str, str]) -> ListAppResponse:
    """Return a job as the queue's list has it."""
    name = service["jobName"]
    row = ListAppResponse(
        f"{queue_name(queue)}:{name}",
        state_of(service),
        name=tags.get(names.TAG_APP_NAME) or name.rpartition("-")[0] or name,
    )
    row.submitted_at = _seconds(service.get("createdAt"))
    row.ended_at = _seconds(service.get("stoppedAt"))
    return row


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if milliseconds else None


def is_over(service: Job) -> bool:
    """Tell whether a job has ended, and no attempt will come any more."""
    return is_terminal(STATE_OF_STATUS.get(service.get("status", ""), AppState.UNKNOWN))


def is_state_of_training(service: Job, training: Job) -> bool:
    """Tell whether a training job is the attempt that the queue's state is about, and not one before it."""
    waiting = service.get("status") in ("SUBMITTED", "PENDING", "RUNNABLE")
    return not (waiting and is_terminal(STATE_OF_REASON[reason_of(training)]))
