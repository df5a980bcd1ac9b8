"""States of a job and of its replicas."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from shunter.errors import AppStatusError
from shunter.terminal import clean, format_duration

NONE = "<NONE>"


class AppState(int, Enum):
    """State of a job. The first eight are TorchX's, with its numbers.

    ``UNREACHABLE`` means that the job cannot be seen now, and says nothing about its health. ``SUSPENDED``
    means that the scheduler holds the job back or has stopped it, until the scheduler or a person resumes it.
    """

    UNSUBMITTED = 0
    SUBMITTED = 1
    PENDING = 2
    RUNNING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    UNKNOWN = 7
    UNREACHABLE = 8
    SUSPENDED = 9

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
class EarlierAttempt:
    """An attempt of a replica after which there was another.

    Args:
        number: which one, from 0.
        started_at: its start, seconds since the epoch; None if it is not known.
        ended_at: its end, likewise.
        exit_code: its code, 128 + N after signal N; None if it is not known.
        reason: how it ended, in words; may be empty.
        log_position: where its log begins, as `LogRange` takes it; "" if that is not known.
    """

    number: int
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    reason: str = ""
    log_position: str = ""


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
        notes: what happened to it, in words, the oldest first: retries by class of failure, hangs.
        earlier: its attempts before the last one, as far as they are known, the oldest first.
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
    notes: list[str] = field(default_factory=list)
    earlier: list[EarlierAttempt] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; the state by its name."""
        data = {**vars(self), "state": self.state.name}
        data["earlier"] = [vars(attempt).copy() for attempt in self.earlier]
        data["structured_error_msg"] = data.pop("structured_error_msg")  # long, so it comes last
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ReplicaStatus:
        """Rebuild what `to_json` wrote."""
        earlier = [EarlierAttempt(**attempt) for attempt in data.get("earlier", ())]
        return cls(**{**data, "state": AppState[data["state"]], "earlier": earlier})


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


def by_role(replicas: Iterable[ReplicaStatus]) -> list[RoleStatus]:
    """Group replicas by their roles, in the order in which these first occur."""
    groups: dict[str, list[ReplicaStatus]] = {}
    for replica in replicas:
        groups.setdefault(replica.role, []).append(replica)
    return [RoleStatus(role, group) for role, group in groups.items()]


def first_report(roles: Iterable[RoleStatus]) -> str:
    """Return the failure report of the replica that ended first of those with one, or `NONE`."""
    failed = [replica for role in roles for replica in role.replicas if replica.structured_error_msg != NONE]
    first = min(failed, key=lambda replica: replica.ended_at or 0.0, default=None)
    return first.structured_error_msg if first else NONE


@dataclass
class AppStatus:
    """State of a job with everything that the scheduler says of it.

    Args:
        state: state of the whole job.
        num_restarts: how many times the job as a whole was restarted; -1 if the scheduler does not tell.
        msg: the reason in words.
        structured_error_msg: JSON text of the first failing replica's error file; ``<NONE>`` without one.
        ui_url: where a browser shows the job.
        roles: states of the replicas, by role.
        results: directory or URI of its model, other results and failure report; None if unknown.
        started_at: when its first replica began to run for the first time, seconds since the epoch; None if
            nothing has run, or the scheduler does not tell.
        ended_at: when it ended, likewise. What is not given follows from the replicas.
    """

    state: AppState
    num_restarts: int = 0
    msg: str = ""
    structured_error_msg: str = NONE
    ui_url: str | None = None
    roles: Sequence[RoleStatus] = ()
    results: str | None = None
    started_at: float | None = None
    ended_at: float | None = None

    def __post_init__(self) -> None:
        self.roles = list(self.roles)
        replicas = self.replicas()
        if self.started_at is None:
            starts = [replica.started_at for replica in replicas]
            starts += [attempt.started_at for replica in replicas for attempt in replica.earlier]
            self.started_at = min((start for start in starts if start is not None), default=None)
        if self.ended_at is None:
            ends = [replica.ended_at for replica in replicas]
            self.ended_at = max((end for end in ends if end is not None), default=None)
        if not is_terminal(self.state):
            self.ended_at = None
        elif self.started_at is not None and self.ended_at is not None:
            # a queue may tell whole seconds, and a replica's host exact times
            self.ended_at = max(self.ended_at, self.started_at)

    @property
    def reason(self) -> str:
        """Why the job is in its state, or "" without a message."""
        return "" if self.msg == NONE else self.msg

    def is_terminal(self) -> bool:
        """Tell whether the job has ended."""
        return is_terminal(self.state)

    def replicas(self) -> list[ReplicaStatus]:
        """Return every replica of every role, in order."""
        return [replica for role in self.roles for replica in role.replicas]

    def selected_roles(self, names: Iterable[str] | None) -> list[RoleStatus]:
        """Return the roles with these names, or all."""
        selected = None if names is None else set(names)
        return [role for role in self.roles if selected is None or role.role in selected]

    def raise_for_status(self) -> None:
        """Raise `AppStatusError` unless the job succeeded.

        Raises:
            AppStatusError: the state is anything but SUCCEEDED.
        """
        if self.state != AppState.SUCCEEDED:
            reason = f": {self.reason}" if self.reason else ""
            raise AppStatusError(self, f"the job is {self.state}{reason}")

    def to_json(self, filter_roles: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the status as JSON values, optionally of some roles only."""
        return {
            "state": self.state.name,
            "num_restarts": self.num_restarts,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "roles": [role.to_json() for role in self.selected_roles(filter_roles)],
            "msg": self.msg,
            "structured_error_msg": self.structured_error_msg,
            "url": self.ui_url,
            "results": self.results,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AppStatus:
        """Rebuild what `to_json` wrote."""
        roles = [RoleStatus.from_json(role) for role in data["roles"]]
        fields = {**data, "state": AppState[data["state"]], "roles": roles, "ui_url": data["url"]}
        del fields["url"]
        return cls(**fields)

    def format(self, filter_roles: Iterable[str] | None = None) -> str:
        """Return the lines that `shunter status` prints."""
        lines = [f"State: {self.state}"]
        if self.num_restarts > 0:
            lines.append(f"Restarts: {self.num_restarts}")
        if self.reason:
            lines.append(f"Reason: {reason_text(self)}")
        return "\n".join([*lines, *detail_lines(self, filter_roles)])


# ---- as text for a person, with torchelastic's error files unfolded

WIDTH = 80
#: How many lines of a program's report of its failure are shown; some quote all their data.
MOST_LINES = 60


def reason_text(status: AppStatus) -> str:
    """Return why a job is in its state, for a terminal: the text may be the program's own."""
    return "\n".join(clean(line) for line in status.reason.split("\n"))


def detail_lines(
    status: AppStatus,
    filter_roles: Iterable[str] | None = None,
    state_text: Callable[[AppState], str] = str,
    *,
    with_errors: bool = True,
) -> list[str]:
    """Return the details of a job besides its state and reason: replicas, error files, its web page.

    ``state_text`` may colour the states; ``with_errors`` says whether to show the errors of replicas.
    """
    lines = []
    for role in status.selected_roles(filter_roles):
        lines.append(f"Role {clean(role.role)}:")
        for replica in role.replicas:
            shown = replica if with_errors else replace(replica, structured_error_msg=NONE)
            lines += _replica_lines(shown, state_text)
    is_of_replica = any(replica.structured_error_msg != NONE for replica in status.replicas())
    if with_errors and status.structured_error_msg != NONE and not is_of_replica:
        lines += error_lines(status.structured_error_msg)
    if status.results:
        lines.append(f"Results: {clean(status.results)}")
    if status.ui_url:
        lines.append(f"URL: {clean(status.ui_url)}")
    return lines


def _replica_lines(replica: ReplicaStatus, state_text: Callable[[AppState], str]) -> list[str]:
    facts = []
    code = f"exit code {replica.exit_code}"
    if replica.exit_code is not None and replica.reason != code and not replica.reason.startswith(f"{code}:"):
        facts.append(code)
    if replica.restarts:
        facts.append(f"restarts {replica.restarts}")
    if replica.started_at is not None and (replica.ended_at is not None or not is_terminal(replica.state)):
        facts.append(format_duration((replica.ended_at or time.time()) - replica.started_at))
    if replica.hostname:
        facts.append(f"on {clean(replica.hostname)}")
    if replica.reason:
        facts.append(clean(replica.reason))
    detail = f" ({', '.join(facts)})" if facts else ""
    lines = [f"  [{replica.id}] {state_text(replica.state)}{detail}"]
    if replica.structured_error_msg != NONE:
        lines += error_lines(replica.structured_error_msg, indent="      ")
    elif replica.state in (AppState.FAILED, AppState.CANCELLED) and not (replica.reason or replica.exit_code):
        lines[0] += " (no reason known)"
    return [*lines, *(f"      {clean(note)}" for note in replica.notes)]


def error_message(structured: str) -> tuple[str, dict[str, object]]:
    """Split an error file's text into its message and its extra information.

    Takes both layouts that torchelastic has written: the message nested under ``message`` and the flat one.
    If the file was cut off, the message is what is left of it. Text that is not JSON is returned as the
    message.
    """
    try:
        data = json.loads(structured)
    except (ValueError, RecursionError):
        return _of_incomplete_file(structured)
    nested = data.get("message") if isinstance(data, dict) else None
    body = nested if isinstance(nested, dict) else data
    if not isinstance(body, dict):
        return str(body), {}
    extra = body.get("extraInfo") or body.get("extra_info")
    info = dict(extra) if isinstance(extra, dict) else {}
    for key, value in (
        ("errorCode", body.get("errorCode", body.get("exitcode"))),
        ("timestamp", info.get("timestamp", body.get("timestamp"))),
    ):
        if value is not None:
            info[key] = value
    message = body.get("message")
    return str(structured if message is None else message), info


def _of_incomplete_file(structured: str) -> tuple[str, dict[str, object]]:
    message = re.search(r'"message": *"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*)', structured)
    if message is None or not structured.startswith("{"):
        return structured, {}
    timestamp = re.search(r'"timestamp": *"?([\d.]+)"?[,}]', structured)
    return json.loads(f'"{message[1]}"', strict=False), {"timestamp": timestamp[1]} if timestamp else {}


def error_lines(structured: str, indent: str = "  ") -> list[str]:
    """Fold an error file's message at 80 columns, its first line marked as the error."""
    message, info = error_message(structured)
    when = f" at {local_time(info['timestamp'])}" if "timestamp" in info else ""
    lines = message.splitlines() or [""]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES // 2 : -MOST_LINES // 2] = [f"... {len(lines) - MOST_LINES} more lines ..."]
    width = WIDTH - len(indent) - 2
    body = [part for line in lines for part in textwrap.wrap(line, width, drop_whitespace=False) or [""]]
    # The text is the program's own: its control characters must not reach a terminal.
    return [f"{indent}error{when}:", *(clean(f"{indent}  {line}".rstrip()) for line in body)]


def local_time(stamp: object) -> str:
    """Return seconds since the epoch as date and time of this machine's time zone; anything else as text."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(str(stamp))))
    except (ValueError, OverflowError, OSError):
        return str(stamp)
