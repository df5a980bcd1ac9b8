"""States of a job and of its replicas.

These are plain classes rather than dataclasses: `trainyard status` reads nothing else of `specs`,
and importing `dataclasses` (with `inspect`) costs as much as the rest of that command.
"""

from __future__ import annotations

from enum import Enum

from trainyard.errors import AppStatusError

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


class SlotRecord:
    """Equality and repr from ``__slots__``, for classes that must import fast."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable, like the lists that it holds

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


class ReplicaStatus(SlotRecord):
    """State of one replica.

    Args:
        id: index of the replica within its role, from 0.
        state: its state.
        role: name of its role.
        hostname: host that it runs or ran on; "" when unknown.
        structured_error_msg: JSON text of the error file that it wrote; ``<NONE>`` without one.
        exit_code: code of its last attempt, 128 + N after signal N; None while it has not ended.
        reason: why it is in this state, in words; "" when there is nothing to say.
        restarts: how many times it was started again.
        started_at: start of its last attempt, seconds since the epoch.
        ended_at: end of its last attempt, seconds since the epoch.
    """

    __slots__ = (
        "ended_at",
        "exit_code",
        "hostname",
        "id",
        "reason",
        "restarts",
        "role",
        "started_at",
        "state",
        "structured_error_msg",
    )

    def __init__(
        self,
        id: int,
        state: AppState,
        role: str,
        hostname: str = "",
        structured_error_msg: str = NONE,
        *,
        exit_code: int | None = None,
        reason: str = "",
        restarts: int = 0,
        started_at: float | None = None,
        ended_at: float | None = None,
    ) -> None:
        self.id = id
        self.state = state
        self.role = role
        self.hostname = hostname
        self.structured_error_msg = structured_error_msg
        self.exit_code = exit_code
        self.reason = reason
        self.restarts = restarts
        self.started_at = started_at
        self.ended_at = ended_at

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; the state by its name."""
        return {
            "id": self.id,
            "state": self.state.name,
            "role": self.role,
            "hostname": self.hostname,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "restarts": self.restarts,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "structured_error_msg": self.structured_error_msg,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ReplicaStatus:
        """Rebuild what `to_json` wrote."""
        return cls(**{**data, "state": AppState[data["state"]]})


class RoleStatus(SlotRecord):
    """State of all replicas of one role."""

    __slots__ = ("replicas", "role")

    def __init__(self, role: str, replicas: Sequence[ReplicaStatus]) -> None:
        self.role = role
        self.replicas = list(replicas)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"role": self.role, "replicas": [replica.to_json() for replica in self.replicas]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RoleStatus:
        """Rebuild what `to_json` wrote."""
        return cls(data["role"], [ReplicaStatus.from_json(replica) for replica in data["replicas"]])


class AppStatus(SlotRecord):
    """State of a job with everything that the scheduler says of it.

    Args:
        state: state of the whole job.
        num_restarts: how often the job as a whole was restarted; -1 when the scheduler does not tell.
        msg: the reason in words.
        structured_error_msg: JSON text of the first failing replica's error file; ``<NONE>`` without one.
        ui_url: where a browser shows the job.
        roles: states of the replicas, by role.
        results: where its model, other results and failure report are: a directory of this machine or a URI;
            None where the scheduler does not know.
    """

    __slots__ = ("msg", "num_restarts", "results", "roles", "state", "structured_error_msg", "ui_url")

    def __init__(
        self,
        state: AppState,
        num_restarts: int = 0,
        msg: str = "",
        structured_error_msg: str = NONE,
        ui_url: str | None = None,
        roles: Sequence[RoleStatus] = (),
        results: str | None = None,
    ) -> None:
        self.state = state
        self.num_restarts = num_restarts
        self.msg = msg
        self.structured_error_msg = structured_error_msg
        self.ui_url = ui_url
        self.roles = list(roles)
        self.results = results

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
