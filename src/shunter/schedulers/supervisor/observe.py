"""Describes a job from its documents: state, message, replicas with their errors, results."""

from __future__ import annotations

import json
import os
from typing import Any

from shunter.paths import existing
from shunter.schedulers.api import DescribeAppResponse
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.outbox import send_if_waiting
from shunter.schedulers.supervisor.recovery import current_state, stopped_text
from shunter.specs.status import (
    NONE,
    AppState,
    EarlierAttempt,
    ReplicaStatus,
    RoleStatus,
    first_report,
    is_terminal,
)
from shunter.specs.training import output_of, specification

MAX_ERROR_FILE = 64 * 1024


def describe(job: JobDirectory) -> DescribeAppResponse | None:
    """Return all that is known of a job's state; None if there is no such job."""
    state = current_state(job)
    return None if state is None else described(job, state)


def described(job: JobDirectory, state: dict[str, Any]) -> DescribeAppResponse:
    """Return all that is known of a job with a state."""
    document = job.read_request() or {}
    layout = [(role, index, log_dir) for role, index, log_dir in document.get("layout", ())]
    log_dirs = {(role, index): log_dir for role, index, log_dir in layout}
    roles = [
        RoleStatus(
            role["role"],
            [_replica_status(job, document, role["role"], item, log_dirs) for item in role["replicas"]],
        )
        for role in state["roles"] or _planned_roles(layout, state["state"])
    ]
    places = job.live_places(state)
    for role in roles:
        for replica in role.replicas:
            found = places.get(f"{role.role}/{replica.id}", {})
            replica.reason = replica.reason or ", ".join(f"{name}: {place}" for name, place in found.items())
    ports = {f"port.{k}.{name}": place for k, found in places.items() for name, place in found.items()}
    if is_terminal(AppState[state["state"]]):
        send_if_waiting(job.path)
    stopped = stopped_text(job, state) if state["state"] == AppState.RUNNING.name else ""
    return DescribeAppResponse(
        app_id=job.name,
        state=AppState[state["state"]],
        num_restarts=state["num_restarts"],
        msg=state["msg"] or stopped or NONE,
        structured_error_msg=first_report(roles),
        ui_url=f"http://{next(iter(ports.values()))}"
        if len(ports) == 1
        else f"file://{job.log_root(layout)}",
        roles_statuses=roles,
        metadata={**document.get("app", {}).get("metadata", {}), **ports},
        results=_results_of(job, document),
        ended_at=state["ended_at"],
    )


def _results_of(job: JobDirectory, document: dict[str, Any]) -> str | None:
    """Return where a job's results are; None if there are none, or it is no sweep and without the toolkit.

    What has failed may have sent nothing to its output.
    """
    is_sweep = bool(document.get("own_directories"))
    roles = document.get("app", {}).get("roles", [])
    found = [(role, specification(role["metadata"])) for role in roles]
    trained = [(role, spec) for role, spec in found if spec]
    if not trained:
        return existing(job.file("ml")) if is_sweep else None
    role, spec = trained[0]
    if elsewhere := document.get("results_in"):
        return existing(output_of(spec, job.name)) or str(elsewhere)
    own = job.base_dir(role["name"], 0) if len(trained) == role["num_replicas"] == 1 else job.file("ml")
    return existing(output_of(spec, job.name), own)


def _planned_roles(layout: list[tuple[str, int, str]], state: str) -> list[dict[str, Any]]:
    """Return the roles as the state document will have them, before the supervisor writes it."""
    planned: dict[str, list[dict[str, Any]]] = {}
    for role, index, _ in layout:
        planned.setdefault(role, []).append({"id": index, "state": state, "reason": ""})
    return [{"role": role, "replicas": replicas} for role, replicas in planned.items()]


def _replica_status(
    job: JobDirectory,
    document: dict[str, Any],
    role: str,
    item: dict[str, Any],
    log_dirs: dict[tuple[str, int], str],
) -> ReplicaStatus:
    state = AppState[item["state"]]
    log_dir = log_dirs.get((role, item["id"]))
    error = NONE
    if state == AppState.FAILED and log_dir:
        error = text_of(os.path.join(log_dir, "error.json")) or NONE  # torchelastic's
        report = text_of(os.path.join(job.base_dir(role, item["id"]), "output", "failure"))  # the toolkit's
        if error == NONE and report:
            error = json.dumps({"message": {"message": report}})
    return ReplicaStatus(
        item["id"],
        state,
        role,
        hostname=document.get("hostnames", {}).get(f"{role}/{item['id']}", "localhost"),
        structured_error_msg=error,
        exit_code=item.get("exit_code"),
        reason=item["reason"],
        restarts=item.get("restarts", 0),
        started_at=item.get("started_at"),
        ended_at=item.get("ended_at"),
        notes=item.get("notes", []),
        earlier=[_earlier(attempt) for attempt in item.get("earlier", ())],
    )


def _earlier(attempt: dict[str, Any]) -> EarlierAttempt:
    out, err = attempt["log_starts"]
    return EarlierAttempt(
        attempt["number"],
        attempt["started_at"],
        attempt["ended_at"],
        attempt["exit_code"],
        attempt["reason"],
        f"{out}.{err}.0",  # see `supervisor/log_ranges.py`
    )


def text_of(path: str) -> str:
    """Return the text of a file that a program may have left, "" without one."""
    try:
        # a program may leave anything there, a FIFO too
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_ERROR_FILE).strip()
    except OSError:
        return ""
