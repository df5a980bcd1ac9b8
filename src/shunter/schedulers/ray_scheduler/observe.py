"""Finding jobs on Ray, and describing them from Ray's record and the driver's state document."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from shunter.errors import BackendError
from shunter.schedulers.ray_scheduler import log_lines, reasons, request
from shunter.schedulers.ray_scheduler.dashboard import Dashboard, job_path
from shunter.schedulers.responses import DescribeAppResponse, ListAppResponse
from shunter.specs.status import NONE, first_report, is_terminal

Job = dict[str, Any]

#: The one replica of a job that others submitted: its driver.
DRIVER_ROLE = "driver"
#: Seconds that the agent of the driver's node may take.
STATE_SECONDS = 10


def find_job(dashboard: Dashboard, app_id: str) -> Job | None:
    """Return Ray's record of a job; None if Ray does not know it."""
    job = dashboard.get(job_path(app_id))
    return job if isinstance(job, dict) else None


def all_jobs(dashboard: Dashboard) -> dict[str, Job]:
    """Return Ray's records of all jobs that were submitted, by submission id: one request."""
    found = dashboard.get("/api/jobs/")
    rows = found.values() if isinstance(found, dict) else found or []  # Ray before 2.3 gave an object
    return {job["submission_id"]: job for job in rows if isinstance(job, dict) and job.get("submission_id")}


def metadata_of(job: Job) -> dict[str, str]:
    """Return a job's metadata."""
    found = job.get("metadata")
    return dict(found) if isinstance(found, dict) else {}


def is_ours(job: Job) -> bool:
    """Tell whether shunter submitted a job."""
    return request.VERSION in metadata_of(job)


def layout_of(job: Job) -> list[tuple[str, int]]:
    """Return a job's roles, and how many replicas each has."""
    try:
        return [(str(name), int(count)) for name, count in json.loads(metadata_of(job)[request.ROLES])]
    except (KeyError, ValueError, TypeError):
        return [(DRIVER_ROLE, 1)]


def state_document(dashboard: Dashboard, app_id: str, job: Job) -> dict[str, Any] | None:
    """Return the state document that the driver keeps beside its log; None if it cannot be had.

    It is read as a log file of the driver's node. If that does not work (the node is gone, or the release
    serves no such files), the document is read from the end of the log, for a job that has ended.
    """
    if not is_ours(job):
        return None
    node = job.get("driver_node_id")
    if node:
        query = {
            "node_id": str(node),
            "filename": f"shunter-{app_id}.json",
            "lines": "-1",
            "timeout": str(STATE_SECONDS),
        }
        try:
            _, content = dashboard.send("GET", "/api/v0/logs/file", query=query)
        except BackendError:
            content = b""
        # releases before 2.10 put a 1 before each piece that succeeded
        found = _json_in(content.decode("utf-8", "replace"))
        if found is not None:
            return found
    return log_lines.state_in(str(job.get("message") or ""))


def _json_in(text: str) -> dict[str, Any] | None:
    start = text.find("{")
    if start < 0:
        return None
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def describe(
    dashboard: Dashboard, app_id: str, job: Job, document: dict[str, Any] | None
) -> DescribeAppResponse:
    """Return what is known of a job."""
    metadata = metadata_of(job)
    roles = reasons.role_statuses(job, document, layout_of(job))
    state = reasons.state_of(job, document)
    if not is_ours(job) and is_terminal(state):
        for role in roles:
            for replica in role.replicas:
                replica.exit_code = job.get("driver_exit_code")
    return DescribeAppResponse(
        app_id,
        state,
        num_restarts=int((document or {}).get("restarts") or 0),
        msg=reasons.message_of(job, document) or NONE,
        structured_error_msg=first_report(roles),
        ui_url=f"{dashboard.address}/#/jobs/{app_id}",
        metadata={key: value for key, value in metadata.items() if not key.startswith("shunter.")},
        roles_statuses=roles,
        results=metadata.get(request.RESULTS),
        ended_at=reasons.seconds(job.get("end_time")),
    )


def brief(dashboard: Dashboard, app_id: str, job: Job) -> DescribeAppResponse:
    """Return what Ray's record alone says of a job: nothing of its replicas."""
    response = describe(dashboard, app_id, job, None)
    response.roles_statuses = []
    return response


def list_jobs(
    jobs: Iterable[tuple[str, Job]], states: frozenset[Any] | None, since: float | None, *, everybodys: bool
) -> list[ListAppResponse]:
    """Return rows for jobs, the oldest first.

    Args:
        jobs: Ray's records by submission id.
        states: only jobs in these states.
        since: only jobs submitted since, in seconds since the epoch.
        everybodys: also jobs that are not ours.
    """
    rows = []
    for app_id, job in jobs:
        started = reasons.seconds(job.get("start_time"))
        state = reasons.state_of(job)
        if not (everybodys or is_ours(job)) or (states and state not in states):
            continue
        if request.EXEC_OF in metadata_of(job):
            continue
        if since is not None and started is not None and started < since:
            continue
        name = metadata_of(job).get(request.NAME, "")
        ended = reasons.seconds(job.get("end_time")) if is_terminal(state) else None
        rows.append(ListAppResponse(app_id, state, name=name, submitted_at=started, ended_at=ended))
    return sorted(rows, key=lambda row: row.submitted_at or 0.0)
