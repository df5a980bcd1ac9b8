"""States, handles and workspaces in the shapes that TorchX gives them, where ours differ.

Each class is one of ours with TorchX's behaviour on top, so that our code takes it as it is.
"""

from __future__ import annotations

import builtins
import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shunter.errors import AppStatusError
from shunter.specs.conversion import snake_case
from shunter.specs.handles import parse_app_handle as parse_handle
from shunter.specs.status import (
    NONE,
    AppState,
    AppStatus,
    ReplicaStatus,
    RoleStatus,
    error_message,
    local_time,
)
from shunter.specs.workspace import Workspace

T = TypeVar("T")
#: Placeholder for a value that a scheduler cannot read back.
UNKNOWN = "<UNKNOWN>"
_TERMINAL_STATES = [AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED]
_REPLICA_FIELDS = ("id", "state", "role", "hostname", "structured_error_msg")
_STATUS_FIELDS = ("state", "num_restarts", "msg", "structured_error_msg", "ui_url", "roles")


def known_state(state: AppState) -> AppState:
    """Return a state as TorchX knows it: code with a table of its eight states fails at a ninth."""
    return {AppState.UNREACHABLE: AppState.UNKNOWN, AppState.SUSPENDED: AppState.PENDING}.get(state, state)


# ---- handles


class TorchxAppHandle(NamedTuple):
    """The parts of a handle, as a tuple."""

    scheduler_backend: str
    session_name: str
    app_id: str

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"ParsedAppHandle({parts})"

    def __str__(self) -> str:
        return f"{self.scheduler_backend}://{self.session_name}/{self.app_id}"


def parse_app_handle(app_handle: str) -> TorchxAppHandle:
    """Split a handle into a tuple of scheduler, session and app id.

    Raises:
        MalformedAppHandleException: it is not a handle.
    """
    parsed = parse_handle(app_handle)
    return TorchxAppHandle(parsed.scheduler_backend, parsed.session_name, parsed.app_id)


# ---- states


def shown_as(name: str) -> Callable[[type[T]], type[T]]:
    """Make the repr of a dataclass use TorchX's name for the class."""

    def decorate(kind: type[T]) -> type[T]:
        shown = [each.name for each in dataclasses.fields(kind) if each.repr]  # type: ignore[arg-type]

        def as_named(self: T) -> str:
            return f"{name}({', '.join(f'{field}={getattr(self, field)!r}' for field in shown)})"

        kind.__repr__ = as_named  # type: ignore[assignment,method-assign]
        return kind

    return decorate


@shown_as("ReplicaStatus")
@dataclass(eq=False)
class TorchxReplicaStatus(ReplicaStatus):
    """State of one replica. ``hostaddr`` is TorchX's second name of the host; the hostname by default."""

    hostaddr: str | None = None

    def __post_init__(self) -> None:
        self.hostaddr = self.hostaddr or self.hostname

    def to_json(self) -> dict[str, Any]:
        """Return TorchX's fields as JSON values; the state as a number."""
        return {
            "id": self.id,
            "state": int(known_state(self.state)),
            "role": self.role,
            "hostname": self.hostname,
            "structured_error_msg": self.structured_error_msg,
            "hostaddr": self.hostaddr,
        }

    __eq__ = lambda self, other: _equal(self, other, ReplicaStatus, _REPLICA_FIELDS)  # noqa: E731
    __hash__ = None  # type: ignore[assignment]


@shown_as("RoleStatus")
@dataclass(eq=False)
class TorchxRoleStatus(RoleStatus):
    """State of the replicas of a role."""

    __eq__ = lambda self, other: _equal(self, other, RoleStatus, ("role", "replicas"))  # noqa: E731
    __hash__ = None  # type: ignore[assignment]


@dataclass(eq=False)
class TorchxAppStatus(AppStatus):
    """State of a job, with the text and the JSON document of TorchX."""

    __eq__ = lambda self, other: _equal(self, other, AppStatus, _STATUS_FIELDS)  # noqa: E731
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in _STATUS_FIELDS}
        return "\n".join(["AppStatus:", *_as_yaml({**values, "structured_error_msg": self._error()}), ""])

    def _error(self) -> Any:
        """Return the error document, or its text if it is not one."""
        try:
            document = json.loads(self.structured_error_msg)
        except (ValueError, RecursionError):
            return self.structured_error_msg
        return document if isinstance(document, (dict, list)) else self.structured_error_msg

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
            "state": str(self.state),
            "num_restarts": self.num_restarts,
            "roles": [
                {"role": role.role, "replicas": [as_torchx_replica(each).to_json() for each in role.replicas]}
                for role in self._roles(filter_roles)
            ],
            "msg": self.msg,
            "structured_error_msg": self.structured_error_msg,
            "url": self.ui_url,
        }

    def format(self, filter_roles: Iterable[str] | None = None) -> str:
        """Return the lines that ``torchx status`` prints."""
        roles = "".join(
            f"\n{line}"
            for role in self._roles(filter_roles)
            for each in role.replicas
            for line in _replica_lines(each)
        )
        return (
            "AppStatus:\n"
            f"    State: {self.state}\n"
            f"    Num Restarts: {self.num_restarts}\n"
            f"    Roles: {roles}\n"
            f"    Msg: {self.msg}\n"
            f"    Structured Error Msg: {self.structured_error_msg}\n"
            f"    UI URL: {self.ui_url}\n"
        )

    def _roles(self, wanted: Iterable[str] | None) -> builtins.list[RoleStatus]:
        names = None if wanted is None else set(wanted)
        return [role for role in self.roles if names is None or role.role in names]


def _equal(one: Any, other: object, cls: type, fields: Sequence[str]) -> Any:
    if not isinstance(other, cls):
        return NotImplemented
    return all(getattr(one, name) == getattr(other, name) for name in fields)


def _as_yaml(value: Any, indent: str = "  ") -> builtins.list[str]:
    """Return the lines of a YAML document with keys in order, as TorchX prints a state."""
    lines = []
    for key, item in sorted(value.items()):
        if isinstance(item, list) and item and all(map(dataclasses.is_dataclass, item)):
            lines.append(f"{indent}{key}:")
            for each in item:
                first, *rest = _as_yaml(vars(each), f"{indent}  ")
                lines += [f"{indent}- {first.lstrip()}", *rest]
        elif isinstance(item, dict) and item:
            lines += [f"{indent}{key}:", *_as_yaml(item, f"{indent}  ")]
        else:
            lines.append(f"{indent}{key}: {_scalar(item)}")
    return lines


def _scalar(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, AppState):
        return repr(known_state(value))
    if (
        isinstance(value, str)
        and value
        and value == value.strip()
        and not re.search(r": |\n|^[\W\d_]", value)
    ):
        return value
    if isinstance(value, str) and "\n" not in value:
        return value if value == NONE else "'" + value.replace("'", "''") + "'"
    return json.dumps(value, default=str)


def _replica_lines(replica: ReplicaStatus) -> builtins.list[str]:
    mark = "*" if replica.id == 0 else " "
    head = f" {mark}{replica.role}[{replica.id}]:{known_state(replica.state).name}"
    if replica.structured_error_msg == NONE:
        failed = replica.state in (AppState.FAILED, AppState.CANCELLED)
        return [f"{head} (no reply file)" if failed else head]
    message, extra = error_message(replica.structured_error_msg)
    if not _has_message(replica.structured_error_msg):
        message = replica.structured_error_msg
    lines = [f"{head} (exitcode: {extra.get('errorCode', '<N/A>')})"]
    lines += [
        f"        timestamp: {local_time(extra.get('timestamp', '<N/A>'))}",
        f"        hostname: {replica.hostname}",
    ]
    return [*lines, f"        error_msg: {message}"]


def _has_message(text: str) -> bool:
    """Tell whether an error file has one of the two layouts with a message; others are shown as they are."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    inner = document.get("message") if isinstance(document, dict) else None
    return isinstance(inner, str) or (isinstance(inner, dict) and isinstance(inner.get("message"), str))


def as_torchx_replica(replica: ReplicaStatus) -> TorchxReplicaStatus:
    """Return a replica's state in TorchX's shape."""
    if isinstance(replica, TorchxReplicaStatus) and replica.state == known_state(replica.state):
        return replica
    return TorchxReplicaStatus(**{**vars(replica), "state": known_state(replica.state)})


def as_torchx_status(status: AppStatus | None) -> TorchxAppStatus | None:
    """Return a job's state in TorchX's shape; None if there is no such job."""
    if status is None:
        return None
    roles = [
        TorchxRoleStatus(role.role, [as_torchx_replica(each) for each in role.replicas])
        for role in status.roles
    ]
    return TorchxAppStatus(
        known_state(status.state),
        status.num_restarts,
        status.msg,
        status.structured_error_msg,
        status.ui_url,
        roles,
        status.results,
    )


# ---- workspaces


@dataclass(eq=False, repr=False)
class TorchxWorkspace(Workspace):
    """Directories that travel with a job, as a dataclass of one field.

    Args:
        projects: directory of this machine -> where its content goes.
    """

    projects: dict[str, str]

    def __init__(self, projects: Mapping[str, str], **more: Any) -> None:
        super().__init__(projects, **more)

    __hash__ = Workspace.__hash__

    @classmethod
    def from_str(cls, workspace: str | None) -> TorchxWorkspace:
        """Read a workspace; see `shunter.specs.workspace.Workspace.from_str`."""
        return as_torchx_workspace(Workspace.from_str(workspace))

    def __str__(self) -> str:
        """Return ``source:target;...`` for people to read; `from_str` does not take it."""
        if self.frozen or self.is_unmapped_single_project():
            return super().__str__()
        return ";".join(f"{source}:{to}" if to else source for source, to in self.projects.items())

    def __repr__(self) -> str:
        return f"Workspace(projects={self.projects!r})"

    def merge_into(self, outdir: str | os.PathLike[str]) -> None:
        """Copy the files of all projects into a directory, each to its place."""
        for source, to in self.projects.items():
            target = os.path.join(outdir, to)
            if os.path.isdir(source):
                shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
            else:
                os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
                shutil.copy2(source, target)


def as_torchx_workspace(workspace: Workspace) -> TorchxWorkspace:
    """Return a workspace in TorchX's shape."""
    return TorchxWorkspace(workspace.projects, implicit=workspace.implicit, frozen=workspace.frozen)


# ---- small things


def get_type_name(tp: Any) -> str:
    """Return the name of a type, with its parameters if it has some."""
    if getattr(tp, "__origin__", None) is None and hasattr(tp, "__name__"):
        return str(tp.__name__)
    return str(tp)


def TORCHX_HOME(*subdir_paths: str) -> Any:  # noqa: N802 - TorchX's name
    """Return ``~/.torchx``, or the folder that the variable TORCHX_HOME names, or one in it; make it."""
    folder = Path(os.environ.get("TORCHX_HOME") or Path.home() / ".torchx").joinpath(*subdir_paths)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class cases:
    """Names of options in either spelling."""

    @staticmethod
    def snake_to_camel(name: str) -> str:
        """Turn ``job_queue`` into ``jobQueue``."""
        first, *others = name.split("_")
        return first + "".join(word.capitalize() for word in others)

    camel_to_snake = staticmethod(snake_case)
