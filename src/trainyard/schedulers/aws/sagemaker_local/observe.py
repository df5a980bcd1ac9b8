"""What is known of a job, as states of a job and its replicas."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from trainyard.schedulers.aws.sagemaker import observe as remote
from trainyard.schedulers.aws.sagemaker_local import recovery
from trainyard.schedulers.aws.sagemaker_local.endpoint import api
from trainyard.schedulers.aws.sagemaker_local.training_job import TERMINAL, JobDir
from trainyard.schedulers.base import DescribeAppResponse, ListAppResponse
from trainyard.specs.status import AppState, ReplicaStatus, RoleStatus, is_terminal
from trainyard.system import processes
from trainyard.system.identity import Process

LONGEST_WAIT = 10.0


def layout(job: JobDir) -> list[tuple[str, int, str]]:
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


def describe(job: JobDir, state: dict[str, Any]) -> DescribeAppResponse:
    """Return a job with each of its hosts."""
    response = remote.describe(job.name, _as_boto(api.describe(job, state)))
    hosts = {host["name"]: host for host in state["hosts"]}
    roles: dict[str, list[ReplicaStatus]] = {}
    for role, index, name in layout(job):
        replica = _replica(role, index, hosts[name], response.state, state)
        roles.setdefault(role, []).append(replica)
    response.roles_statuses = [RoleStatus(role, replicas) for role, replicas in roles.items()]
    response.num_restarts = state["restarts"]
    if state["status"] not in TERMINAL:
        stopped = processes.stopped_text(Process.from_json(state.get("runner")), "runner")
        response.msg = stopped or response.msg
    response.ui_url = f"file://{job.file('logs')}"
    response.results = (response.results or "").removeprefix("file://") or None
    return response


def _replica(
    role: str, index: int, host: dict[str, Any], job_state: AppState, state: dict[str, Any]
) -> ReplicaStatus:
    of_host = {"pending": AppState.PENDING, "running": AppState.RUNNING}
    if host["state"] == "exited":
        found = AppState.SUCCEEDED if host["exit_code"] == 0 else AppState.FAILED
    elif host["state"] == "stopped":
        found = AppState.CANCELLED
    elif host["state"] in of_host and not is_terminal(job_state):
        found = of_host[host["state"]]
    else:
        found = job_state
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
    )


def listed(job: JobDir, state: dict[str, Any]) -> ListAppResponse:
    """Return a job as a row of a list."""
    tags = [{"Key": key, "Value": value} for key, value in job.read_tags().items()]
    row = remote.listed({**_as_boto(api.describe(job, state)), "Tags": tags})
    row.submitted_at = state["created_at"]
    row.ended_at = state["transitions"][-1].get("EndTime") if state["status"] in TERMINAL else None
    return row


def wait_for_end(job: JobDir, timeout: float | None) -> None:
    """Return when a job has ended, or ``timeout`` seconds have passed."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        state = recovery.current_state(job)
        if state is None or state["status"] in TERMINAL:
            return
        left = LONGEST_WAIT if deadline is None else min(LONGEST_WAIT, deadline - time.monotonic())
        if left <= 0:
            return
        _wait_for_runner(state, left)


def _wait_for_runner(state: dict[str, Any], seconds: float) -> None:
    """Wait for the end of a job's runner, or of its guard where the runner is gone."""
    for name in ("runner", "guard"):
        keeper = Process.from_json(state.get(name))
        if keeper is None or not keeper.is_alive():
            continue
        processes.wait_for_end(keeper, seconds)
        return
    time.sleep(min(seconds, 0.1))
