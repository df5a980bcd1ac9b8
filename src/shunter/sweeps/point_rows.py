"""The points of a sweep that was submitted, each with its values and its state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from shunter.errors import ConfigError
from shunter.runner import Runner
from shunter.schedulers.registry import SWEEPS
from shunter.specs.handles import parse_app_handle
from shunter.specs.status import AppState, AppStatus, ReplicaStatus, is_terminal
from shunter.specs.sweep_points import index_of, points_of


def known_points(runner: Runner, handle: str) -> list[dict[str, Any]]:
    """Return the points of a sweep as the history has them; empty for another job."""
    record = runner.history.find(handle)
    roles = (record.app.get("roles") or []) if record is not None else []
    for role in roles:
        if points := points_of(role.get("metadata") or {}):
            return points
    app = runner.describe(handle) if handle.startswith(f"{SWEEPS}://") else None
    return next((points_of(role.metadata) for role in app.roles), []) if app else []


def point_rows(runner: Runner, handle: str, status: AppStatus) -> list[dict[str, Any]]:
    """Return the points of a sweep with the states of their replicas, as JSON values.

    Raises:
        ConfigError: the job is not a sweep.
    """
    parsed = parse_app_handle(handle)
    app = runner.describe(handle)
    role = next((role for role in (app.roles if app else []) if points_of(role.metadata)), None)
    if role is None:
        raise ConfigError(f"{handle} is not a sweep, so it has no points", hint="`shunter sweep` starts one.")
    details = runner.scheduler(parsed.scheduler_backend).details(parsed.app_id)
    rows = []
    for index, point in enumerate(points_of(role.metadata)):
        replicas = [r for r in status.replicas() if r.role == role.name or r.role.startswith(f"{index}.")]
        replicas = [r for r in replicas if index_of(r.role, r.id) == index]
        # the replica that shows the state of the point: one that has failed, else one that has not ended
        replicas.sort(key=lambda r: (r.state is not AppState.FAILED, is_terminal(r.state)))
        shown = replicas[0] if replicas else ReplicaStatus(index, status.state, role.name)
        rows.append(
            {
                "point": index,
                "replica": f"{shown.role}/{shown.id}",
                "values": point["values"],
                "state": shown.state.name,
                "exit_code": shown.exit_code,
                "reason": shown.reason,
                "directory": details.directory_of(role.name, index),
                "seconds": _seconds(replicas),
            }
        )
    return rows


def _seconds(replicas: Sequence[ReplicaStatus]) -> float | None:
    """Return how long a point has run; None if it has not, or that is not known."""
    starts = [replica.started_at for replica in replicas if replica.started_at is not None]
    ends = [replica.ended_at for replica in replicas if replica.ended_at is not None]
    if not all(is_terminal(replica.state) for replica in replicas):
        ends = [time.time()]
    return max(ends) - min(starts) if starts and ends else None
