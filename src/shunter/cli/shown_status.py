"""A job's status: asked for, shown as text and as JSON, turned into an exit code."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any, TextIO

from shunter.cli.console import paint_state
from shunter.errors import (
    EXIT_BACKEND,
    EXIT_JOB_FAILED,
    EXIT_OK,
    BackendError,
    UnknownAppException,
    UsageError,
    did_you_mean,
)
from shunter.limits import cut
from shunter.runner import Runner
from shunter.runner.observation import unknown_job
from shunter.runner.records import REFUSED
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState, AppStatus, RoleStatus, detail_lines, reason_text
from shunter.terminal import clean

_ORDER = ("RUNNING", "SUSPENDED", "PENDING", "SUBMITTED", "SUCCEEDED", "FAILED", "CANCELLED")


def status_of(runner: Runner, handle: str, *, refusal_is_final: bool = False) -> AppStatus:
    """Return the status of a job; UNREACHABLE, with the reason, if it cannot be seen now.

    Raises:
        AccessError: the scheduler refuses the credentials, and ``refusal_is_final``.
        UnknownAppException: there is no such job.
    """
    status = runner.status(handle, refusal_is_final=refusal_is_final)
    if status is None:
        raise unknown_job(handle)
    return status


def check_not_gone(runner: Runner, handle: str, status: AppStatus) -> None:
    """Refuse to watch a job that was never started, or that its scheduler has lost: it would never end.

    Raises:
        UnknownAppException: the job does not exist (any more).
    """
    parsed = parse_app_handle(handle)
    scheduler = runner.scheduler(parsed.scheduler_backend)
    is_gone = False
    if status.state == AppState.UNSUBMITTED:
        record = runner.history.find(handle)
        is_gone = record is None or record.phase == REFUSED
    # a remote scheduler may take a while to show a job that it has accepted
    elif status.state == AppState.UNKNOWN or (
        status.state == AppState.SUBMITTED and scheduler.capabilities.is_local
    ):
        try:
            is_gone = not scheduler.exists(parsed.app_id)
        except (BackendError, OSError):
            is_gone = False
    if is_gone:
        reason = status.reason or "its scheduler no longer knows the job"
        raise UnknownAppException(f"{handle}: {reason}", hint="`shunter list --all` shows all known jobs.")


# ---- as text and as JSON


def status_text(
    handle: str, status: AppStatus, roles: list[str] | None, resources: Iterable[str] = ()
) -> str:
    """Return a job's status as text, with what it has used; on a terminal the states are coloured."""

    def state_text(state: AppState) -> str:
        return paint_state(state.name, sys.stdout)

    lines = [f"Job: {handle}", f"State: {state_text(status.state)}"]
    if status.num_restarts > 0:
        lines.append(f"Restarts: {status.num_restarts}")
    if status.reason:
        lines.append(f"Reason: {reason_text(status)}")
    lines += detail_lines(status, roles, state_text)
    return "\n".join([*lines, *(f"Resources: {clean(text)}" for text in resources)])


def role_line(role: RoleStatus, width: int = 0, stream: TextIO | None = None) -> str:
    """Return ``trainer: 2 RUNNING, 1 PENDING``, and the restarts of its replicas."""
    counts = Counter(replica.state.name for replica in role.replicas)
    states = sorted(counts, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    text = ", ".join(f"{counts[name]} {paint_state(name, stream) if stream else name}" for name in states)
    restarts = sum(replica.restarts for replica in role.replicas)
    tail = f", restarts {restarts}" if restarts else ""
    return f"{clean(role.role) + ':':{width + 1}} {text or 'no replicas yet'}{tail}"


def changes(before: AppStatus | None, after: AppStatus, roles: list[str] | None = None) -> list[str]:
    """Return a line for each state that differs between two statuses of a job."""
    old = {} if before is None else {(r.role, r.id): (r.state, r.restarts) for r in before.replicas()}
    lines = []
    for replica in after.replicas():
        if roles is not None and replica.role not in roles:
            continue
        if old.get((replica.role, replica.id)) != (replica.state, replica.restarts):
            facts = [f"exit code {replica.exit_code}"] if replica.exit_code is not None else []
            facts += [f"restarts {replica.restarts}"] if replica.restarts else []
            facts += [clean(replica.reason)] if replica.reason else []
            detail = f" ({', '.join(facts)})" if facts else ""
            lines.append(f"{clean(replica.role)}/{replica.id} {replica.state}{detail}")
    if before is None or before.state != after.state:
        reason = f" ({clean(after.reason)})" if after.reason else ""
        lines.append(f"job {after.state}{reason}")
    return lines


def job_json(handle: str, status: AppStatus | None, roles: Iterable[str] | None = None) -> dict[str, Any]:
    """Return a job as JSON values: its names, then its status if known."""
    parsed = parse_app_handle(handle)
    data: dict[str, Any] = {
        "handle": handle,
        "app_id": parsed.app_id,
        "scheduler": parsed.scheduler_backend,
        "session": parsed.session_name,
    }
    if status is not None:
        data |= status.to_json(roles)
        data["ui_url"] = status.ui_url
    return data


def check_roles(status: AppStatus, names: Iterable[str]) -> None:
    """Refuse roles that the job does not have.

    Raises:
        UsageError: there is no such role.
    """
    existing = [role.role for role in status.roles]
    for name in names:
        if existing and name not in existing:
            raise UsageError(f"the job has no role {name!r}", hint=did_you_mean(name, existing))


# ---- as an exit code


def exit_code_of(status: AppStatus, source: str | None = None) -> int:
    """Return the exit code of a command that watched a job to its end.

    ``source`` is None for 0 or 1, ``ROLE/ID`` for that replica's own code, or ``any`` for the code of the
    replica that failed first.
    """
    if status.state == AppState.UNREACHABLE:
        return EXIT_BACKEND
    plain = EXIT_OK if status.state == AppState.SUCCEEDED else EXIT_JOB_FAILED
    replicas = sorted(status.replicas(), key=lambda replica: replica.ended_at or float("inf"))
    if source == "any":
        return next((replica.exit_code for replica in replicas if replica.exit_code), plain)
    codes = [replica.exit_code for replica in replicas if f"{replica.role}/{replica.id}" == source]
    return next((code for code in codes if code is not None), plain)


def exit_code_of_look(status: AppStatus) -> int:
    """Return the exit code of a command that only looked at a job: whether it could be seen."""
    return EXIT_BACKEND if status.state == AppState.UNREACHABLE else EXIT_OK


def check_exit_code_source(source: str | None, replicas: Iterable[tuple[str, int]]) -> None:
    """Refuse an ``--exit-code-from`` that names none of a job's replicas.

    Raises:
        UsageError: the job has no such replica.
    """
    names = [f"{name}/{k}" for name, k in replicas]
    if source is not None and source not in ("any", *names):
        raise UsageError(
            f"--exit-code-from {cut(source)}: the job has no such replica",
            hint=did_you_mean(cut(source), names[:50]),
        )
