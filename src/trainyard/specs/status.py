"""States of a job and of its replicas. `trainyard status` imports nothing else of `specs`."""

from __future__ import annotations

from enum import Enum

from trainyard.errors import AppStatusError
from trainyard.lazy_dataclass import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

NONE = "<NONE>"


class AppState(int, Enum):
    """State of a job. ``UNREACHABLE`` means that it cannot be seen now, and says nothing of its health."""

    UNSUBMITTED = 0
    SUBMITTED = 1
    PENDING = 2
    RUNNING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    UNKNOWN = 7
    UNREACHABLE = 8

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{self.name} ({self.value})"


ReplicaState = AppState

TERMINAL_STATES = frozenset({AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED})
STARTED_STATES = TERMINAL_STATES | {AppState.RUNNING}


def is_terminal(state: AppState) -> bool:
    """Tell whether a job in this state can never change again."""
    return state in TERMINAL_STATES


def is_started(state: AppState) -> bool:
    """Tell whether a job in this state has begun to run at some time."""
    return state in STARTED_STATES


@dataclass
class ReplicaStatus:
    """State of one replica.

    Args:
        id: index of the replica within its role, from 0.
        state: its state.
        role: name of its role.
        hostname: host that it runs or ran on; "" if unknown.
        structured_error_msg: JSON text of the error file that it wrote; ``<NONE>`` without one.
        exit_code: code of its last attempt, 128 + N after signal N; None while it has not ended.
        reason: why it is in this state, in words; may be empty.
        restarts: how many times it was restarted.
        started_at: start of its last attempt, seconds since the epoch.
        ended_at: end of its last attempt, seconds since the epoch.
    """

    id: int
    state: AppState
    role: str
    hostname: str = ""
    structured_error_msg: str = NONE
    exit_code: int | None = None
    reason: str = ""
    restarts: int = 0
    started_at: float | None = None
    ended_at: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; the state by its name."""
        data = {**vars(self), "state": self.state.name}
        data["structured_error_msg"] = data.pop("structured_error_msg")  # long, so it comes last
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ReplicaStatus:
        """Rebuild what `to_json` wrote."""
        return cls(**{**data, "state": AppState[data["state"]]})


@dataclass
class RoleStatus:
    """State of all replicas of one role."""

    role: str
    replicas: Sequence[ReplicaStatus]

    def __post_init__(self) -> None:
        self.replicas = list(self.replicas)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"role": self.role, "replicas": [replica.to_json() for replica in self.replicas]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RoleStatus:
        """Rebuild what `to_json` wrote."""
        return cls(data["role"], [ReplicaStatus.from_json(replica) for replica in data["replicas"]])


@dataclass
class AppStatus:
    """State of a job with everything that the scheduler says of it.

    Args:
        state: state of the whole job.
        num_restarts: how often the job as a whole was restarted; -1 if the scheduler does not tell.
        msg: the reason in words.
        structured_error_msg: JSON text of the first failing replica's error file; ``<NONE>`` without one.
        ui_url: where a browser shows the job.
        roles: states of the replicas, by role.
        results: directory or URI of its model, other results and failure report; None if unknown.
    """

    state: AppState
    num_restarts: int = 0
    msg: str = ""
    structured_error_msg: str = NONE
    ui_url: str | None = None
    roles: Sequence[RoleStatus] = ()
    results: str | None = None

    def __post_init__(self) -> None:
        self.roles = list(self.roles)

    def is_terminal(self) -> bool:
        """Tell whether the job has ended."""
        return is_terminal(self.state)

    def replicas(self) -> list[ReplicaStatus]:
        """Return every replica of every role, in order."""
        return [replica for role in self.roles for replica in role.replicas]

    def raise_for_status(self) -> None:
        """Raise `AppStatusError` unless the job succeeded.

        Raises:
            AppStatusError: the state is anything but SUCCEEDED.
        """
        if self.state != AppState.SUCCEEDED:
            reason = f": {self.msg}" if self.msg and self.msg != NONE else ""
            raise AppStatusError(self, f"the job is {self.state}{reason}")

    def to_json(self, filter_roles: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the status as JSON values, optionally of some roles only."""
        wanted = None if filter_roles is None else set(filter_roles)
        return {
            "state": self.state.name,
            "num_restarts": self.num_restarts,
            "roles": [role.to_json() for role in self.roles if wanted is None or role.role in wanted],
            "msg": self.msg,
            "structured_error_msg": self.structured_error_msg,
            "url": self.ui_url,
            "results": self.results,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AppStatus:
        """Rebuild what `to_json` wrote."""
        return cls(
            AppState[data["state"]],
            data["num_restarts"],
            data["msg"],
            data["structured_error_msg"],
            data["url"],
            [RoleStatus.from_json(role) for role in data["roles"]],
            data.get("results"),
        )

    def format(self, filter_roles: Iterable[str] | None = None) -> str:
        """Return the status as text for a person."""
        from trainyard.specs.status_text import format_status

        return format_status(self, filter_roles)
