"""A job's status: asked for, shown as text and as JSON, turned into an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

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
from shunter.specs.status import AppState, AppStatus, detail_lines, reason_text

ANY = "any"


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
    if status.state not in (AppState.UNKNOWN, AppState.UNSUBMITTED, AppState.SUBMITTED):
        return
    if _is_gone(runner, handle, status.state):
        reason = status.reason or "its scheduler no longer knows the job"
        raise UnknownAppException(f"{handle}: {reason}", hint="`shunter list --all` shows all known jobs.")


def _is_gone(runner: Runner, handle: str, state: AppState) -> bool:
    if state == AppState.UNSUBMITTED:
        record = runner.history.find(handle)
        return record is None or record.phase == REFUSED
    parsed = parse_app_handle(handle)
    scheduler = runner.scheduler(parsed.scheduler_backend)
    if state == AppState.SUBMITTED and not scheduler.capabilities.is_local:
        return False  # a remote scheduler may take a while to show a job that it has accepted
    try:
        return not scheduler.exists(parsed.app_id)
    except (BackendError, OSError):
        return False


def status_text(handle: str, status: AppStatus, roles: list[str] | None) -> str:
    """Return a job's status as text; on a terminal the states are coloured."""

    def state_text(state: AppState) -> str:
        return paint_state(state.name, sys.stdout)

    lines = [f"Job: {handle}", f"State: {state_text(status.state)}"]
    if status.num_restarts > 0:
        lines.append(f"Restarts: {status.num_restarts}")
    if status.reason:
        lines.append(f"Reason: {reason_text(status)}")
    return "\n".join([*lines, *detail_lines(status, roles, state_text)])


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


def exit_code_of(status: AppStatus, source: str | None = None) -> int:
    """Return the exit code of a command that watched a job to its end.

    ``source`` is None for 0 or 1, ``ROLE/ID`` for that replica's own code, or ``any`` for the code of the
    replica that failed first.
    """
    if status.state == AppState.UNREACHABLE:
        return EXIT_BACKEND
    plain = EXIT_OK if status.state == AppState.SUCCEEDED else EXIT_JOB_FAILED
    if source is None:
        return plain
    if source == ANY:
        ended = sorted(status.replicas(), key=lambda replica: replica.ended_at or float("inf"))
        return next((replica.exit_code for replica in ended if replica.exit_code), plain)
    name = _replica_name(source)
    codes = [replica.exit_code for replica in status.replicas() if f"{replica.role}/{replica.id}" == name]
    return next((code for code in codes if code is not None), plain)


def _replica_name(source: str) -> str:
    """Return ``ROLE/0`` for ``ROLE`` and ``ROLE/00``."""
    role, _, number = source.partition("/")
    return f"{role}/{number.lstrip('0') or '0'}"


def exit_code_of_look(status: AppStatus) -> int:
    """Return the exit code of a command that only looked at a job: whether it could be seen."""
    return EXIT_BACKEND if status.state == AppState.UNREACHABLE else EXIT_OK


def check_exit_code_source(source: str | None, replicas: Iterable[tuple[str, int]] | None = None) -> None:
    """Check the value of ``--exit-code-from``, also against the job's replicas if they are given.

    Raises:
        UsageError: it is neither ``ROLE/ID`` nor ``any``, or the job has no such replica.
    """
    if source is None or source == ANY:
        return
    role, slash, number = source.partition("/")
    if not role or (slash and not number.isdecimal()):
        raise UsageError(
            f"--exit-code-from must be ROLE/ID or any, not {source!r}", hint="Example: trainer/0."
        )
    if replicas is None:
        return
    names = [f"{name}/{k}" for name, k in replicas]
    if _replica_name(source) not in names:
        raise UsageError(
            f"--exit-code-from {cut(source)}: the job has no such replica",
            hint=did_you_mean(cut(_replica_name(source)), names[:50]),
        )
