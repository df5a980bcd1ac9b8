"""A job's status as text for a person, with torchelastic's error files unfolded."""

from __future__ import annotations

import time

from trainyard.specs.status import NONE, AppState, AppStatus, ReplicaStatus
from trainyard.terminal import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

WIDTH = 80


def format_status(status: AppStatus, filter_roles: Iterable[str] | None = None) -> str:
    """Return the lines that `trainyard status` prints."""
    lines = [f"State: {status.state}"]
    if status.num_restarts > 0:
        lines.append(f"Restarts: {status.num_restarts}")
    if status.msg and status.msg != NONE:
        lines.append(f"Reason: {reason_text(status)}")
    return "\n".join([*lines, *detail_lines(status, filter_roles)])


def reason_text(status: AppStatus) -> str:
    """Return why a job is in its state, for a terminal: the text may be the program's own."""
    return "\n".join(clean(line) for line in status.msg.split("\n"))


def detail_lines(status: AppStatus, filter_roles: Iterable[str] | None = None) -> list[str]:
    """Return what there is to say beside a job's state and reason: replicas, error files, its page."""
    wanted = None if filter_roles is None else set(filter_roles)
    lines = []
    for role in status.roles:
        if wanted is None or role.role in wanted:
            lines.append(f"Role {clean(role.role)}:")
            lines += [line for replica in role.replicas for line in _replica_lines(replica)]
    shown = any(replica.structured_error_msg != NONE for replica in status.replicas())
    if not shown and status.structured_error_msg != NONE:
        lines += error_lines(status.structured_error_msg)
    if status.results:
        lines.append(f"Results: {clean(status.results)}")
    if status.ui_url:
        lines.append(f"URL: {clean(status.ui_url)}")
    return lines


def _replica_lines(replica: ReplicaStatus) -> list[str]:
    facts = []
    code = f"exit code {replica.exit_code}"
    if replica.exit_code is not None and replica.reason != code and not replica.reason.startswith(f"{code}:"):
        facts.append(code)
    if replica.restarts:
        facts.append(f"restarts {replica.restarts}")
    if replica.started_at is not None:
        facts.append(_duration((replica.ended_at or time.time()) - replica.started_at))
    if replica.hostname:
        facts.append(f"on {clean(replica.hostname)}")
    if replica.reason:
        facts.append(clean(replica.reason))
    detail = f" ({', '.join(facts)})" if facts else ""
    lines = [f"  [{replica.id}] {replica.state}{detail}"]
    if replica.structured_error_msg != NONE:
        lines += error_lines(replica.structured_error_msg, indent="      ")
    elif replica.state in (AppState.FAILED, AppState.CANCELLED) and not replica.reason:
        lines[0] += " (no reason known)"
    return lines


def error_message(structured: str) -> tuple[str, dict[str, object]]:
    """Split an error file's text into its message and its extra information.

    Takes both layouts that torchelastic has written: the message nested under ``message`` and the flat
    one. Text that is not JSON is returned as the message.
    """
    import json

    try:
        data = json.loads(structured)
    except (ValueError, RecursionError):
        return structured, {}
    if not isinstance(data, dict):
        return str(data), {}
    body = data.get("message", data)
    if isinstance(body, str):
        body = data
    if not isinstance(body, dict):
        return str(body), {}
    extra = body.get("extraInfo") or body.get("extra_info") or {}
    info = dict(extra) if isinstance(extra, dict) else {"extraInfo": extra}
    code = body.get("errorCode", body.get("exitcode"))
    if code is not None:
        info["errorCode"] = code
    message = body.get("message")
    return str(message if message is not None else structured), info


def error_lines(structured: str, indent: str = "  ") -> list[str]:
    """Fold an error file's message at 80 columns, its first line marked as the error."""
    import textwrap

    message, info = error_message(structured)
    when = info.get("timestamp")
    head = f"{indent}error" + (f" at {_local_time(when)}" if when is not None else "") + ":"
    body = [
        part
        for line in message.splitlines() or [""]
        for part in textwrap.wrap(line, WIDTH - len(indent) - 2, drop_whitespace=False) or [""]
    ]
    # The text is the program's own: its control characters must not reach a terminal.
    return [head, *(clean(f"{indent}  {line}".rstrip()) for line in body)]


def _local_time(stamp: object) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(str(stamp))))
    except (ValueError, OverflowError, OSError):
        return str(stamp)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{max(seconds, 0):.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d} min"
