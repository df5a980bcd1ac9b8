"""What has become of a job, found out by whoever asks.

A job whose supervisor is gone is ended here: what its replicas left running is killed, and FAILED is
written with the reason. A job of another machine (a shared home directory) is not ours to judge.
"""

from __future__ import annotations

import fcntl
import json
import os
import time

from trainyard.schedulers.base import DescribeAppResponse
from trainyard.schedulers.exec.process import reasons
from trainyard.schedulers.exec.process.job_directory import JobDir
from trainyard.specs.status import NONE, AppState, ReplicaStatus, RoleStatus, is_terminal
from trainyard.system import processes
from trainyard.system.identity import Process, machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_ERROR_FILE = 64 * 1024


def current_state(job: JobDir) -> dict[str, Any] | None:
    """Return the job's state document, brought up to date if its supervisor is gone; None without a job."""
    state = job.read_state()
    if state is None:
        document = job.read_job()
        return None if document is None else _not_yet_supervised(job, document)
    if is_terminal(AppState[state["state"]]) or _is_supervised(state):
        return state
    here = machine()
    if state["host"] != here["host"]:
        return {**state, "state": AppState.UNREACHABLE.name, "msg": f"it runs on {state['host']}"}
    lost = reasons.REBOOTED if state["boot_id"] != here["boot_id"] else reasons.SUPERVISOR_LOST
    return _end(job, lost)


def _is_supervised(state: dict[str, Any]) -> bool:
    """Tell whether the supervisor, or the guard that is cleaning up behind it, still runs."""
    here = machine()
    if state["host"] != here["host"] or state["boot_id"] != here["boot_id"]:
        return False
    return processes.is_kept(*(Process.from_json(state.get(name)) for name in ("supervisor", "guard")))


def _not_yet_supervised(job: JobDir, document: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a job between its submission and its supervisor's first word."""
    base = {
        "app_id": job.app_id,
        "num_restarts": 0,
        "msg": "",
        "started_at": None,
        "ended_at": None,
        "roles": [],
        **document["submitted_from"],
    }
    here = machine()
    if base["host"] != here["host"]:
        return {**base, "state": AppState.UNREACHABLE.name, "msg": f"it was submitted on {base['host']}"}
    if os.path.exists(job.file("state.json")):  # always replaced whole, so somebody else has damaged it
        lost = reasons.STATE_LOST
        return {**base, "state": reasons.state_of(lost).name, "msg": reasons.describe(lost)}
    submitter = Process.from_json(document["submitter"])
    if base["boot_id"] == here["boot_id"] and submitter is not None and submitter.is_alive():
        return {**base, "state": AppState.SUBMITTED.name}
    state = job.read_state()  # the submitter may have ended because all went well
    return state if state is not None else _end(job, reasons.NEVER_STARTED, base)


def _end(job: JobDir, reason: str, base: dict[str, Any] | None = None) -> dict[str, Any]:
    """End a job that nobody supervises any more; safe when several readers do it at once."""
    try:
        lock = os.open(job.file("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # a read-only state directory: say it without writing it down
        return reasons.ended_state(job.read_state() or base or {}, reason, time.time())
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = job.read_state() or base or {}
        if "state" in state and (is_terminal(AppState[state["state"]]) or _is_supervised(state)):
            return state
        processes.kill_members_of_job(job.path)
        ended = reasons.ended_state(state, reason, time.time())
        job.write_final_state(ended)
    except OSError:
        return reasons.ended_state(job.read_state() or base or {}, reason, time.time())
    finally:
        os.close(lock)
    return ended


def describe_job(job: JobDir) -> DescribeAppResponse | None:
    """Return all that is known of a job's state; None if there is no such job."""
    state = current_state(job)
    if state is None:
        return None
    document = job.read_job() or {}
    layout = _layout_in(document)
    log_dirs = {(role, index): log_dir for role, index, log_dir in layout}
    roles = [
        RoleStatus(
            role["role"], [_replica_status(job, role["role"], item, log_dirs) for item in role["replicas"]]
        )
        for role in _roles_of(layout, state)
    ]
    errors = [replica for role in roles for replica in role.replicas if replica.structured_error_msg != NONE]
    first = min(errors, key=lambda replica: replica.ended_at or 0.0, default=None)
    return DescribeAppResponse(
        app_id=job.app_id,
        state=AppState[state["state"]],
        num_restarts=state["num_restarts"],
        msg=state["msg"] or _stopped_text(state) or NONE,
        structured_error_msg=first.structured_error_msg if first else NONE,
        ui_url=f"file://{log_root(job, layout)}",
        roles_statuses=roles,
        metadata=document.get("app", {}).get("metadata", {}),
        results=_results_of(job, document),
    )


def _stopped_text(state: dict[str, Any]) -> str:
    if state["state"] != AppState.RUNNING.name:
        return ""
    return processes.stopped_text(Process.from_json(state.get("supervisor")), "supervisor")


def replica_layout(job: JobDir) -> list[tuple[str, int, str]]:
    """Return role, index and log directory of every replica, in order."""
    return _layout_in(job.read_job() or {})


def _layout_in(document: dict[str, Any]) -> list[tuple[str, int, str]]:
    return [(role, index, log_dir) for role, index, log_dir in document.get("layout", ())]


def _results_of(job: JobDir, document: dict[str, Any]) -> str | None:
    """Return where a job's results are; None if it does not run under the toolkit."""
    from trainyard.specs.training import output_of, specification

    roles = document.get("app", {}).get("roles", [])
    found = [(role, specification(role["metadata"])) for role in roles]
    trained = [(role, spec) for role, spec in found if spec]
    if not trained:
        return None
    role, spec = trained[0]
    own = job.base_dir(role["name"], 0) if len(trained) == role["num_replicas"] == 1 else job.file("ml")
    return output_of(spec, job.app_id) or own


def log_root(job: JobDir, layout: list[tuple[str, int, str]]) -> str:
    """Return the directory below which the job's logs lie."""
    return os.path.dirname(os.path.dirname(layout[0][2])) if layout else job.file("logs")


def _roles_of(layout: list[tuple[str, int, str]], state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the roles of the state document, or of the plan while there are none in it yet."""
    if state["roles"]:
        roles: list[dict[str, Any]] = state["roles"]
        return roles
    planned: dict[str, list[dict[str, Any]]] = {}
    for role, index, _ in layout:
        planned.setdefault(role, []).append({"id": index, "state": state["state"], "reason": ""})
    return [{"role": role, "replicas": replicas} for role, replicas in planned.items()]


def _replica_status(
    job: JobDir, role: str, item: dict[str, Any], log_dirs: dict[tuple[str, int], str]
) -> ReplicaStatus:
    state = AppState[item["state"]]
    log_dir = log_dirs.get((role, item["id"]))
    error = NONE
    if state == AppState.FAILED and log_dir:
        error = _error_file(log_dir)
        error = _failure_report(job.base_dir(role, item["id"])) if error == NONE else error
    return ReplicaStatus(
        item["id"],
        state,
        role,
        hostname="localhost",
        structured_error_msg=error,
        exit_code=item.get("exit_code"),
        reason=item["reason"],
        restarts=item.get("restarts", 0),
        started_at=item.get("started_at"),
        ended_at=item.get("ended_at"),
    )


def _error_file(log_dir: str) -> str:
    """Return the text of torchelastic's error file, if the replica wrote one."""
    try:
        # the program may leave anything there, a FIFO too
        descriptor = os.open(os.path.join(log_dir, "error.json"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_ERROR_FILE).strip() or NONE
    except OSError:
        return NONE


def _failure_report(base: str) -> str:
    """Return the toolkit's report on a failed script as an error file's text, if there is one."""
    try:
        with open(os.path.join(base, "output", "failure"), encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_ERROR_FILE).strip()
    except OSError:
        return NONE
    return json.dumps({"message": {"message": text}}) if text else NONE
