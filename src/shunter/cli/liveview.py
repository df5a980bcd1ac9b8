"""States and shipping progress, redrawn in place on a terminal, printed line by line elsewhere."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import TextIO

from shunter.cli.console import is_tty, note, paint, paint_state, terminal_size
from shunter.cli.lastmetrics import LastMetrics
from shunter.cli.units import format_bytes
from shunter.specs.status import AppState, AppStatus, RoleStatus
from shunter.terminal import clean, format_duration, render

# Seconds between two drawings on a terminal, and between two lines elsewhere.
_REDRAW = 0.1
_REPEAT = 5.0
# Steps shorter than this are not shown.
_PATIENCE = 0.3
_SHORTEST_BAR, _LONGEST_BAR = 10, 30
_ORDER = ("RUNNING", "SUSPENDED", "PENDING", "SUBMITTED", "SUCCEEDED", "FAILED", "CANCELLED")
#: States in which a job waits for something, which its message names.
_WAITING = (AppState.PENDING, AppState.SUSPENDED)


class Screen:
    """Lines at the bottom of a terminal, which are redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = 0

    def draw(self, lines: list[str]) -> None:
        """Redraw; lines beyond the height of the terminal are only counted."""
        columns, height = terminal_size()
        room = max(height - 2, 1)
        if len(lines) > room:
            lines = [*lines[: room - 1], f"... and {len(lines) - room + 1} more"]
        # a line break would make the count of drawn lines wrong
        shown = (render(line.replace("\n", " ").replace("\t", " ")) for line in lines)
        text = "".join(_cut(line, columns) + "\x1b[K\n" for line in shown)
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._stream.write(f"{up}{text}\x1b[J")
        self._stream.flush()
        self._drawn = len(lines)

    def finish(self, lines: list[str]) -> None:
        """Replace the drawing by all lines, which stay."""
        self.clear()
        self._stream.write("".join(f"{render(line)}\n" for line in lines))
        self._stream.flush()

    def clear(self) -> None:
        """Remove the drawing."""
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}F\x1b[J")
            self._stream.flush()
            self._drawn = 0


def _cut(line: str, columns: int) -> str:
    """Cut a line that would wrap. Colours take no columns."""
    shown, kept = 0, ""
    for part in re.findall(r"\x1b\[[^m]*m|.", line):
        if not part.startswith("\x1b"):
            if shown == columns - 1:
                return kept + "\x1b[0m"
            shown += 1
        kept += part
    return line


class StatusLines:
    """What `run --wait` shows on stderr: a line per role, and the job's state when it changes."""

    def __init__(self, handle: str, since: float) -> None:
        self._name = handle.rpartition("/")[2]
        self._since = since
        self._screen = Screen(sys.stderr) if is_tty(sys.stderr) else None
        self._metrics: LastMetrics | None = None
        self._handle = handle
        self._said = ""

    def show(self, status: AppStatus, now: float | None = None) -> None:
        """Show a status."""
        elapsed = format_duration((time.time() if now is None else now) - self._since)
        if self._screen is not None:
            if self._metrics is None and status.state == AppState.RUNNING:
                self._metrics = LastMetrics(self._handle)
            self._screen.draw(self._lines(status, elapsed))
            return
        head = f"{self._name} {status.state}"
        if status.reason and status.state in _WAITING:
            head += f" ({clean(status.reason)})"
        said = "; ".join([head, *(role_line(role) for role in status.roles)])
        if said != self._said:
            self._said = said
            note(said)

    def finish(self, status: AppStatus) -> None:
        """Stop reading metrics. Remove the lines from a terminal; elsewhere show the last status."""
        if self._metrics is not None:
            self._metrics.close()
        if self._screen is not None:
            self._screen.clear()
        else:
            self.show(status)

    def _lines(self, status: AppStatus, elapsed: str) -> list[str]:
        head = f"{self._name}  {paint_state(str(status.state), sys.stderr)}  {elapsed}"
        if status.reason:
            head += "  " + paint(clean(status.reason), "2", sys.stderr)
        width = max((len(role.role) for role in status.roles), default=0)
        return [head, *(self._role_line(role, width) for role in status.roles)]

    def _role_line(self, role: RoleStatus, width: int) -> str:
        values = self._metrics.of(role.role) if self._metrics is not None else ""
        return f"  {role_line(role, width, sys.stderr)}" + (f"  {values}" if values else "")


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
    wanted = None if roles is None else set(roles)
    old = {} if before is None else {(r.role, r.id): (r.state, r.restarts) for r in before.replicas()}
    lines = []
    for replica in after.replicas():
        if wanted is not None and replica.role not in wanted:
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


class TerminalProgress:
    """A `shunter.progress.Progress` that writes to a stream; on a terminal the last line is redrawn."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._live = is_tty(stream)
        self._lock = threading.Lock()
        self._began = self._written = time.monotonic()
        self._text = ""
        self._transfers: dict[str, tuple[int, int]] = {}
        self._shown = False

    def step(self, text: str) -> None:
        """Begin a step."""
        with self._lock:
            self._text = clean(text)
            self._transfers.clear()
            self._draw(force=not self._live)

    def advance(self, label: str, done: int, total: int) -> None:
        """Show how many bytes have been transferred."""
        with self._lock:
            self._transfers[label] = (done, total)
            self._draw()

    def output(self, line: str) -> None:
        """Print a line of a program's output."""
        with self._lock:
            self._erase()
            self._write(clean(line.rstrip("\n")) + "\n")

    def done(self, text: str) -> None:
        """Print the result of the step."""
        with self._lock:
            self._erase()
            self._text = ""
            self._transfers.clear()
            self._write(clean(text) + "\n")

    def clear(self) -> None:
        """Remove the changing line."""
        with self._lock:
            self._erase()

    def _draw(self, force: bool = False) -> None:
        now = time.monotonic()
        if not self._live:
            if not force and now - self._written < _REPEAT:
                return
        elif now - self._written < _REDRAW or now - self._began < _PATIENCE:
            return
        self._written = now
        line = " ".join(filter(None, (self._text, _amounts(self._transfers))))
        if not self._live:
            self._write(line + "\n")
            return
        width = terminal_size()[0] - 1
        self._write(f"\r\x1b[K{(line + self._bar(width - len(line)))[:width]}")
        self._shown = True

    def _bar(self, room: int) -> str:
        """Return a bar of what has been transferred, where there is room for it and the total is known."""
        done, total = _sums(self._transfers)
        width = min(room - 3, _LONGEST_BAR)
        if width < _SHORTEST_BAR or not all(size for _, size in self._transfers.values()) or not total:
            return ""
        full = min(width * done // total, width)
        return f" [{'#' * full}{'-' * (width - full)}]"

    def _erase(self) -> None:
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the reader is gone; the submission continues
            self._stream = None


def _sums(transfers: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Return the bytes that have been transferred, and the total, summed over all transfers."""
    return sum(done for done, _ in transfers.values()), sum(total for _, total in transfers.values())


def _amounts(transfers: dict[str, tuple[int, int]]) -> str:
    """Return the sum of all transfers as text."""
    done, total = _sums(transfers)
    if not done and not total:
        return ""
    if not total:
        return format_bytes(done)
    return f"{format_bytes(done)} of {format_bytes(total)} ({100 * done // total} %)"
