"""States of jobs as TorchX has them: its eight states, its texts and its JSON document (``torchx.specs``)."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, overload

from shunter.errors import AppStatusError
from shunter.schedulers.responses import ListAppResponse
from shunter.specs import status as ours
from shunter.specs.status import NONE, AppState, ReplicaStatus, RoleStatus, error_message, local_time

_OF_TORCHX = {AppState.UNREACHABLE: AppState.UNKNOWN, AppState.SUSPENDED: AppState.PENDING}
_FIELDS = ("msg", "num_restarts", "roles", "state", "structured_error_msg", "ui_url")
_REPLICA_FIELDS = ("hostname", "id", "role", "state", "structured_error_msg")


@dataclass(eq=False, repr=False)
class AppStatus(ours.AppStatus):
    """State of a job, with the texts and the JSON document of TorchX."""

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in _FIELDS}
        values["structured_error_msg"] = _document(self.structured_error_msg)
        return "\n".join(["AppStatus:", *_yaml_lines(values), ""])

    def raise_for_status(self) -> None:
        """Do nothing if the job succeeded.

        Raises:
            AppStatusError: it did not.
        """
        if self.state != AppState.SUCCEEDED:
            raise AppStatusError(self, f"job did not succeed: {self!r}")

    def to_json(self, filter_roles: Iterable[str] | None = None) -> dict[str, Any]:
        """Return what ``torchx status --json`` prints: the state by name, those of replicas as numbers."""
        return {
            "state": str(torchx_state(self.state)),
            "num_restarts": self.num_restarts,
            "roles": [
                {"role": role.role, "replicas": [replica_json(replica) for replica in role.replicas]}
                for role in self._chosen(filter_roles)
            ],
            "msg": self.msg,
            "structured_error_msg": self.structured_error_msg,
            "url": self.ui_url,
        }

    def format(self, filter_roles: Iterable[str] | None = None) -> str:
        """Return the lines that ``torchx status`` prints."""
        replicas = [replica for role in self._chosen(filter_roles) for replica in role.replicas]
        roles = "".join(f"\n{line}" for replica in replicas for line in _replica_lines(replica))
        return (
            "AppStatus:\n"
            f"    State: {self.state}\n"
            f"    Num Restarts: {self.num_restarts}\n"
            f"    Roles: {roles}\n"
            f"    Msg: {self.msg}\n"
            f"    Structured Error Msg: {self.structured_error_msg}\n"
            f"    UI URL: {self.ui_url}\n"
        )

    def _chosen(self, names: Iterable[str] | None) -> list[RoleStatus]:
        wanted = None if names is None else set(names)
        return [role for role in self.roles if wanted is None or role.role in wanted]


def torchx_state(state: AppState) -> AppState:
    """Return a state that TorchX has: UNKNOWN for UNREACHABLE, PENDING for SUSPENDED, else the same.

    Code for TorchX has tables of eight states, and would fail at a ninth.
    """
    return _OF_TORCHX.get(state, state)


@overload
def torchx_status(status: ours.AppStatus) -> AppStatus: ...
@overload
def torchx_status(status: None) -> None: ...
def torchx_status(status: ours.AppStatus | None) -> AppStatus | None:
    """Return a job's status as TorchX has it; None for None."""
    if status is None:
        return None
    roles = [
        RoleStatus(
            role.role, [replace(replica, state=torchx_state(replica.state)) for replica in role.replicas]
        )
        for role in status.roles
    ]
    return AppStatus(**{**vars(status), "state": torchx_state(status.state), "roles": roles})


def torchx_rows(rows: Iterable[ListAppResponse]) -> list[ListAppResponse]:
    """Return the rows of a list of jobs with the states that TorchX has."""
    return [replace(row, state=torchx_state(row.state)) for row in rows]


def replica_json(replica: ReplicaStatus) -> dict[str, Any]:
    """Return TorchX's fields of a replica's state as JSON values; the state as a number."""
    return {
        "id": replica.id,
        "state": int(torchx_state(replica.state)),
        "role": replica.role,
        "hostname": replica.hostname,
        "structured_error_msg": replica.structured_error_msg,
    }


# ---- texts


def _document(text: str) -> Any:
    """Return an error file's content: its document, or its text if it is not one."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return document if isinstance(document, (dict, list)) else text


def _yaml_lines(values: dict[str, Any], indent: str = "  ") -> list[str]:
    """Return the lines of a YAML document with keys in order, as TorchX prints a state."""
    lines = []
    for key, value in sorted(values.items()):
        if isinstance(value, list) and value and all(map(dataclasses.is_dataclass, value)):
            lines.append(f"{indent}{key}:")
            for item in value:
                names = _REPLICA_FIELDS if isinstance(item, ReplicaStatus) else tuple(vars(item))
                first, *rest = _yaml_lines({name: getattr(item, name) for name in names}, f"{indent}  ")
                lines += [f"{indent}- {first.lstrip()}", *rest]
        elif isinstance(value, dict) and value:
            lines += [f"{indent}{key}:", *_yaml_lines(value, f"{indent}  ")]
        else:
            lines.append(f"{indent}{key}: {_scalar(value)}")
    return lines


def _scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, AppState):
        return repr(torchx_state(value))
    if not isinstance(value, str) or "\n" in value:
        return json.dumps(value, default=str)
    is_plain = value == value.strip() != "" and not re.search(r": |^[\W\d_]", value)
    return value if is_plain or value == NONE else "'" + value.replace("'", "''") + "'"


def _replica_lines(replica: ReplicaStatus) -> list[str]:
    mark = "*" if replica.id == 0 else " "
    head = f" {mark}{replica.role}[{replica.id}]:{torchx_state(replica.state).name}"
    if replica.structured_error_msg == NONE:
        has_failed = replica.state in (AppState.FAILED, AppState.CANCELLED)
        return [f"{head} (no reply file)" if has_failed else head]
    message, extra = error_message(replica.structured_error_msg)
    return [
        f"{head} (exitcode: {extra.get('errorCode', '<N/A>')})",
        f"        timestamp: {local_time(extra.get('timestamp', '<N/A>'))}",
        f"        hostname: {replica.hostname}",
        f"        error_msg: {message}",
    ]
