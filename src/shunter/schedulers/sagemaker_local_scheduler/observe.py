"""Describes the state of a training job as the state of a job and its replicas."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from shunter.paths import existing
from shunter.schedulers.api import DescribeAppResponse, ListAppResponse
from shunter.schedulers.aws_sagemaker_scheduler import observe as remote
from shunter.schedulers.sagemaker_local_scheduler import description
from shunter.schedulers.sagemaker_local_scheduler.job_status import TERMINAL
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor import recovery
from shunter.schedulers.supervisor.outbox import send_if_waiting
from shunter.specs.status import AppState, EarlierAttempt, ReplicaStatus, by_role, is_terminal


def layout(job: TrainingJob) -> list[tuple[str, int, str]]:
    """Return role, index and host of every replica."""
    document = job.read_request() or {}
    places = remote.layout(document.get("request") or {})
    roles = (document.get("app") or {}).get("roles") or []
    if len(roles) != 1:
        return places
    # the only role's replicas, whichever groups their hosts are in
    return [(roles[0]["name"], number, host) for number, (_, _, host) in enumerate(places)]


def _as_boto(description: dict[str, Any]) -> dict[str, Any]:
    """Return a description with its times as boto3 gives them."""
    times: dict[str, Any] = {
        key: datetime.fromtimestamp(description[key], UTC)
        for key in ("CreationTime", "TrainingStartTime", "TrainingEndTime", "LastModifiedTime")
        if key in description
    }
    return {**description, **times}


def describe(job: TrainingJob, state: dict[str, Any]) -> DescribeAppResponse:
    """Return a job with each of its hosts."""
    if state["status"] in TERMINAL:
        send_if_waiting(job.path)
    response = remote.describe(job.name, _as_boto(description.describe(job, state)))
    hosts = {host["name"]: host for host in state["hosts"]}
    response.roles_statuses = by_role(
        _replica(role, index, hosts[name], response.state, state) for role, index, name in layout(job)
    )
    response.num_restarts = state["restarts"]
    response.ended_at = _ended_at(state)
    if state["status"] not in TERMINAL:
        response.msg = recovery.stopped_text(job, state) or response.msg
    response.ui_url = f"file://{job.file('logs')}"
    response.results = existing((response.results or "").removeprefix("file://"))
    return response


def _replica(
    role: str, index: int, host: dict[str, Any], job_state: AppState, state: dict[str, Any]
) -> ReplicaStatus:
    found = job_state
    if host["state"] == "exited":
        found = AppState.SUCCEEDED if host["exit_code"] == 0 else AppState.FAILED
    elif host["state"] == "stopped":
        found = AppState.CANCELLED
    elif host["state"] in ("pending", "running") and not is_terminal(job_state):
        found = AppState.PENDING if host["state"] == "pending" else AppState.RUNNING
    if found == AppState.FAILED and job_state == AppState.CANCELLED:
        found = AppState.CANCELLED
    return ReplicaStatus(
        index,
        found,
        role,
        host["name"],
        exit_code=host["exit_code"],
        reason=host["reason"],
        restarts=state["restarts"],
        started_at=host["started_at"],
        ended_at=host["ended_at"],
        earlier=[_earlier(number, name) for number, name in enumerate(host["streams"][:-1])],
    )


def _earlier(number: int, stream: str) -> EarlierAttempt:
    """Return an attempt that was followed by another; its log is named after its start, see `logs.py`."""
    began = int(stream.rpartition("-")[2]) / 1000
    return EarlierAttempt(number, started_at=began, log_position=f"{number}:0.0.0")


def listed(job: TrainingJob, state: dict[str, Any]) -> ListAppResponse:
    """Return a job as a row of a list."""
    tags = description.tag_list(job.read_tags())
    row = remote.listed({**_as_boto(description.describe(job, state)), "Tags": tags})
    row.submitted_at = state["created_at"]
    row.ended_at = _ended_at(state)
    return row


def _ended_at(state: dict[str, Any]) -> float | None:
    return state["transitions"][-1].get("EndTime") if state["status"] in TERMINAL else None
