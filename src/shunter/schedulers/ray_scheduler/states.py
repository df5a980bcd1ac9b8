"""What is known of a job: Ray's record and the driver's state document, as our states and reasons."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from shunter.errors import BackendError
from shunter.schedulers.ray_scheduler import request
from shunter.schedulers.ray_scheduler.dashboard import Dashboard
from shunter.schedulers.responses import DescribeAppResponse, ListAppResponse
from shunter.specs.status import NONE, AppState, ReplicaStatus, RoleStatus, first_report, is_terminal

#: Begins the line of the log with the state document at the job's end.
STATE_MARK = "shunter-state "
#: The one replica of a job that others submitted: its driver.
DRIVER_ROLE = "driver"
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
    "JOB_ENTRYPOINT_COMMAND_ERROR": "",
    "RUNTIME_ENV_SETUP_FAILURE": "its runtime environment could not be made",
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": "Ray could not start its driver in time",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": "Ray could not start its driver",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": "there is no node for its driver",
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE": "its driver failed",
    "JOB_SUPERVISOR_ACTOR_DIED": "the node of its driver was lost",
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": "its driver could not be started",
}
LONGEST_MESSAGE = 2000
#: Seconds that a driver may take until it has written its state document for the first time.
DRIVER_SECONDS = 30.0
#: Seconds that the agent of the driver's node may take to give it.
STATE_SECONDS = 10


@dataclass
class RayJob:
    """A job.

    Args:
        app_id: its id.
        record: Ray's record of it.
        document: the state document of its driver; empty if there is none, or nobody asked for it.
        is_forgotten: whether Ray has forgotten it, and its end was kept here.
    """

    app_id: str
    record: dict[str, Any]
    document: dict[str, Any]
    is_forgotten: bool = False

    @property
    def metadata(self) -> dict[str, str]:
        """Ray's metadata of it."""
        return self.record.get("metadata") or {}

    @property
    def is_ours(self) -> bool:
        """Whether shunter submitted it."""
        return request.VERSION in self.metadata

    @property
    def is_command(self) -> bool:
        """Whether it runs a command beside a replica of another job."""
        return request.EXEC_OF in self.metadata

    @property
    def layout(self) -> list[tuple[str, int]]:
        """Its roles, and how many replicas each has."""
        roles = json.loads(self.metadata.get(request.ROLES) or f'[["{DRIVER_ROLE}", 1]]')
        return [(str(name), int(count)) for name, count in roles]

    @property
    def ended_at(self) -> float | None:
        """When it ended."""
        return _seconds(self.record.get("end_time"))

    @property
    def _is_starting(self) -> bool:
        """Whether its driver may not have written its state document yet."""
        started = _seconds(self.record.get("start_time")) or 0.0
        is_recent = self.is_ours and time.time() - started < DRIVER_SECONDS
        return self.record.get("status") == "RUNNING" and not self.document and is_recent

    @cached_property
    def state(self) -> AppState:
        """Its state. A status that is not known counts as open: UNKNOWN."""
        state = _STATES.get(str(self.record.get("status")), AppState.UNKNOWN)
        if state is AppState.RUNNING and self.document.get("phase") in ("waiting", "placing"):
            return AppState.PENDING
        if state is AppState.FAILED and self.document.get("state") == AppState.CANCELLED.name:
            return AppState.CANCELLED
        return AppState.PENDING if self._is_starting else state

    @property
    def message(self) -> str:
        """Why it is in its state; "" if the state says it all."""
        status, reason = self.record.get("status") or "nothing", str(self.document.get("msg") or "")
        if status not in _STATES:
            return f"Ray says {status} of it, which this version does not know"
        if status == "PENDING":
            return str(self.record.get("message") or "")
        if status == "STOPPED":
            return reason or "stopped"
        if status == "FAILED":
            return reason or self._failure()
        return "its driver is starting" if self._is_starting else reason

    def _failure(self) -> str:
        kind, text = str(self.record.get("error_type") or ""), str(self.record.get("message") or "")
        lines = [line for line in text.strip().splitlines() if line.strip()]
        parts = [_ERRORS.get(kind, kind), "\n".join(lines[-10:])[-LONGEST_MESSAGE:]]
        return ": ".join(filter(None, parts))

    def roles(self) -> list[RoleStatus]:
        """Return the states of its replicas: the driver's, or else what follows from the job's state."""
        if self.document.get("roles"):
            return [
                RoleStatus(role["role"], [self._replica(role["role"], each) for each in role["replicas"]])
                for role in self.document["roles"]
            ]
        state, code = AppState.PENDING, None
        if is_terminal(self.state):
            state, code = self.state, None if self.is_ours else self.record.get("driver_exit_code")
        return [
            RoleStatus(name, [ReplicaStatus(k, state, name, exit_code=code) for k in range(count)])
            for name, count in self.layout
        ]

    def _replica(self, role: str, item: dict[str, Any]) -> ReplicaStatus:
        state = AppState.__members__.get(str(item.get("state")), AppState.UNKNOWN)
        reason, ended_at = str(item.get("reason") or ""), item.get("ended_at")
        if is_terminal(self.state) and not is_terminal(state):  # the driver was killed before it could say so
            state = AppState.CANCELLED if self.state is AppState.CANCELLED else AppState.FAILED
            reason, ended_at = reason or "it ended with its driver", ended_at or self.ended_at
        return ReplicaStatus(
            int(item["id"]),
            state,
            role,
            hostname=str(item.get("hostname") or ""),
            structured_error_msg=str(item.get("structured") or NONE),
            exit_code=item.get("exit_code"),
            reason=reason,
            notes=list(item.get("notes") or ()),
            restarts=int(item.get("restarts") or 0),
            started_at=item.get("started_at"),
            ended_at=ended_at,
        )

    def response(self, dashboard: Dashboard, *, brief: bool = False) -> DescribeAppResponse:
        """Return what is known of it, where it is or was; ``brief`` leaves out the replicas."""
        roles = [] if brief else self.roles()
        message = self.message
        if self.is_forgotten:
            note = "as kept here; Ray has forgotten the job"
            message = f"{message} ({note})" if message else note
        return DescribeAppResponse(
            self.app_id,
            self.state,
            num_restarts=int(self.document.get("restarts") or 0),
            msg=message or NONE,
            structured_error_msg=first_report(roles),
            ui_url=None if self.is_forgotten else f"{dashboard.address}/#/jobs/{self.app_id}",
            metadata={key: text for key, text in self.metadata.items() if not key.startswith("shunter.")},
            roles_statuses=roles,
            results=self.metadata.get(request.RESULTS),
            ended_at=self.ended_at,
        )

    def row(self) -> ListAppResponse:
        """Return its row in a list of jobs."""
        return ListAppResponse(
            self.app_id,
            self.state,
            name=self.metadata.get(request.NAME, ""),
            submitted_at=_seconds(self.record.get("start_time")),
            ended_at=self.ended_at if is_terminal(self.state) else None,
        )


def find_job(dashboard: Dashboard, app_id: str, *, with_document: bool = False) -> RayJob | None:
    """Return a job as Ray knows it; None if Ray does not know it."""
    record = dashboard.job(app_id)
    if record is None:
        return None
    job = RayJob(app_id, record, {})
    if with_document and job.is_ours:
        job.document = _state_document(dashboard, app_id, record)
    return job


def _state_document(dashboard: Dashboard, app_id: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the state document that the driver keeps beside its log; empty if it cannot be had.

    It is read as a log file of the driver's node. If that does not work (the node is gone), the document is
    read from the end of the log, which Ray's record of a job that has failed contains.
    """
    query = {
        "node_id": str(record.get("driver_node_id")),
        "filename": f"shunter-{app_id}.json",
        "lines": "-1",
        "timeout": str(STATE_SECONDS),
    }
    content = b""
    if record.get("driver_node_id"):
        try:
            _, content = dashboard.send("GET", f"/api/v0/logs/file?{urlencode(query)}")
        except BackendError:
            pass
    # Ray 2.9 puts a 1 before each piece that succeeded
    return _first_json(content.decode("utf-8", "replace")) or state_in(str(record.get("message") or ""))


def state_in(text: str) -> dict[str, Any]:
    """Return the last state document in a text of the log; empty without one."""
    _, mark, document = text.rpartition(STATE_MARK)
    return _first_json(document) if mark else {}


def _first_json(text: str) -> dict[str, Any]:
    """Return the first JSON object of a text; empty without one."""
    try:
        document: dict[str, Any] = json.JSONDecoder().raw_decode(text[text.index("{") :])[0]
    except ValueError:
        return {}
    return document


def _seconds(milliseconds: Any) -> float | None:
    """Return one of Ray's times in seconds since the epoch; None without one."""
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) and milliseconds > 0 else None
