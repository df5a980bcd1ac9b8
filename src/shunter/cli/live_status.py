"""What is shown of a job while it is watched: the lines of `run --wait`, and `status --watch`."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from shunter.cli.console import FAINT, Screen, is_tty, note, out, paint, paint_state
from shunter.cli.shown_status import job_json, status_text
from shunter.specs.status import AppState, AppStatus, RoleStatus
from shunter.terminal import clean, format_duration

if TYPE_CHECKING:
    from shunter.metrics.last_values import LastValues

_ORDER = ("RUNNING", "SUSPENDED", "PENDING", "SUBMITTED", "SUCCEEDED", "FAILED", "CANCELLED")
#: States in which a job waits for something, which its message names.
_WAITING = (AppState.PENDING, AppState.SUSPENDED)


class _LiveStatus:
    """Redraws a job's status on a terminal; elsewhere subclasses print lines."""

    def __init__(self, handle: str, screen: Screen | None) -> None:
        self._handle = handle
        self._screen = screen
        self._metrics: LastValues | None = None

    def _last_values(self, status: AppStatus) -> dict[str, str]:
        """Return the last values of the metrics of each role that has reported any."""
        if self._metrics is None and status.state == AppState.RUNNING:
            from shunter.metrics.last_values import LastValues  # 30 ms, only if a job runs on a terminal

            self._metrics = LastValues(self._handle)
        return {} if self._metrics is None else self._metrics.texts

    def _close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()


class StatusLines(_LiveStatus):
    """What `run --wait` shows on stderr: a line per role, and the job's state when it changes."""

    def __init__(self, handle: str, since: float) -> None:
        super().__init__(handle, Screen(sys.stderr) if is_tty(sys.stderr) else None)
        self._name = handle.rpartition("/")[2]
        self._since = since
        self._last_line = ""

    def show(self, status: AppStatus) -> None:
        """Show a status."""
        if self._screen is not None:
            self._screen.draw(self._lines(status, self._last_values(status)))
            return
        head = f"{self._name} {status.state}"
        if status.reason and status.state in _WAITING:
            head += f" ({clean(status.reason)})"
        line = "; ".join([head, *(role_line(role) for role in status.roles)])
        if line != self._last_line:
            self._last_line = line
            note(line)

    def finish(self, status: AppStatus) -> None:
        """Stop reading metrics. Remove the lines from a terminal; elsewhere show the last status."""
        self._close()
        if self._screen is not None:
            self._screen.clear()
        else:
            self.show(status)

    def _lines(self, status: AppStatus, values: dict[str, str]) -> list[str]:
        elapsed = format_duration(time.time() - self._since)
        head = f"{self._name}  {paint_state(str(status.state), sys.stderr)}  {elapsed}"
        if status.reason:
            head += "  " + paint(clean(status.reason), FAINT, sys.stderr)
        width = max((len(role.role) for role in status.roles), default=0)
        return [
            head,
            *(
                f"  {role_line(role, width, sys.stderr)}  {values.get(role.role, '')}".rstrip()
                for role in status.roles
            ),
        ]


class StatusView(_LiveStatus):
    """What `status --watch` shows on stdout: the whole status, what has changed of it, or JSON lines."""

    def __init__(self, handle: str, roles: list[str] | None, as_json: bool) -> None:
        super().__init__(handle, Screen(sys.stdout) if is_tty(sys.stdout) and not as_json else None)
        self._roles = roles
        self._json = as_json
        self._before: AppStatus | None = None

    def show(self, status: AppStatus) -> None:
        """Show a status, or what has changed since the previous one."""
        if self._screen is not None:
            self._draw(self._screen, status)
        elif self._json:
            if status != self._before:
                out(json.dumps(job_json(self._handle, status, self._roles)))
        else:
            clock = time.strftime("%H:%M:%S")
            for line in changes(self._before, status, self._roles):
                out(f"{clock} {line}")
        self._before = status

    def _draw(self, screen: Screen, status: AppStatus) -> None:
        lines = status_text(self._handle, status, self._roles).split("\n")
        if status.is_terminal():  # the last values may not have been read yet: `metrics` shows them
            self._close()
            screen.finish(lines)
            return
        values = self._last_values(status)
        lines += [f"Metrics of {clean(role)}: {text}" for role, text in values.items()]
        screen.draw(lines)


def role_line(role: RoleStatus, width: int = 0, stream: TextIO | None = None) -> str:
    """Return ``trainer: 2 RUNNING, 1 PENDING``, and the restarts of its replicas."""
    counts = Counter(replica.state.name for replica in role.replicas)
    states = sorted(counts, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    text = ", ".join(f"{counts[name]} {paint_state(name, stream) if stream else name}" for name in states)
    restarts = sum(replica.restarts for replica in role.replicas)
    tail = f", restarts {restarts}" if restarts else ""
    return f"{clean(role.role) + ':':{width + 1}} {text or 'no replicas yet'}{tail}"


def changes(before: AppStatus | None, after: AppStatus, roles: Iterable[str] | None = None) -> list[str]:
    """Return a line for each state that differs between two statuses of a job."""
    names = None if roles is None else set(roles)
    old = {} if before is None else {(r.role, r.id): (r.state, r.restarts) for r in before.replicas()}
    lines = []
    for replica in after.replicas():
        if names is not None and replica.role not in names:
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
