"""How far a job's code is on its way: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time

from trainyard.cli.console import is_terminal, terminal_size
from trainyard.terminal import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

# Seconds between two drawings of the changing line; between two lines where nothing can be redrawn.
_REDRAW = 0.1
_REPEAT = 5.0
# What takes less than this is not worth a line.
_PATIENCE = 0.3


class TerminalProgress:
    """A `trainyard.progress.Progress` that writes to a stream.

    Args:
        stream: usually stderr. On a terminal the last line changes in place.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._live = is_terminal(stream)
        self._lock = threading.Lock()
        self._began = self._written = time.monotonic()
        self._text = ""
        self._under_way: dict[str, tuple[int, int]] = {}
        self._shown = False

    def step(self, text: str) -> None:
        """Begin something."""
        with self._lock:
            self._text = clean(text)
            self._under_way.clear()
            self._draw(force=not self._live)

    def advance(self, label: str, done: int, total: int) -> None:
        """Tell how many bytes of something are through."""
        with self._lock:
            self._under_way[label] = (done, total)
            self._draw()

    def output(self, line: str) -> None:
        """Pass on a line of a program's output."""
        with self._lock:
            self._erase()
            self._write(clean(line.rstrip("\n")) + "\n")

    def done(self, text: str) -> None:
        """Tell what came of it."""
        with self._lock:
            self._erase()
            self._text = ""
            self._under_way.clear()
            self._write(clean(text) + "\n")

    def clear(self) -> None:
        """Take the changing line away."""
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
        line = " ".join(filter(None, (self._text, _amounts(self._under_way))))
        if not self._live:
            self._write(line + "\n")
            return
        width = terminal_size()[0] - 1
        self._write(f"\r\x1b[K{line[:width]}")
        self._shown = True

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
        except (OSError, ValueError):  # nobody looks any more, which is no reason not to submit the job
            self._stream = None


def _amounts(under_way: dict[str, tuple[int, int]]) -> str:
    """Return the sum of what is under way, in words."""
    done = sum(pair[0] for pair in under_way.values())
    total = sum(pair[1] for pair in under_way.values())
    if not done and not total:
        return ""
    if not total:
        return format_bytes(done)
    return f"{format_bytes(done)} of {format_bytes(total)} ({100 * done // total} %)"


def format_bytes(count: float) -> str:
    """Return a number of bytes for people: "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
