"""The states of jobs as code for TorchX knows them: a table of its eight states fails at a ninth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import overload

from shunter.schedulers.responses import ListAppResponse
from shunter.specs.status import AppState, AppStatus, RoleStatus

_OF_TORCHX = {AppState.UNREACHABLE: AppState.UNKNOWN, AppState.SUSPENDED: AppState.PENDING}


def torchx_state(state: AppState) -> AppState:
    """Return a state that TorchX has: UNKNOWN for UNREACHABLE, PENDING for SUSPENDED, else the same."""
    return _OF_TORCHX.get(state, state)


@overload
def torchx_status(status: AppStatus) -> AppStatus: ...
@overload
def torchx_status(status: None) -> None: ...
def torchx_status(status: AppStatus | None) -> AppStatus | None:
    """Return a job's status with the states that TorchX has; None for None."""
    if status is None:
        return None
    roles = [
        RoleStatus(
            role.role, [replace(replica, state=torchx_state(replica.state)) for replica in role.replicas]
        )
        for role in status.roles
    ]
    return replace(status, state=torchx_state(status.state), roles=roles)


def torchx_rows(rows: Iterable[ListAppResponse]) -> list[ListAppResponse]:
    """Return the rows of a list of jobs with the states that TorchX has."""
    return [replace(row, state=torchx_state(row.state)) for row in rows]
