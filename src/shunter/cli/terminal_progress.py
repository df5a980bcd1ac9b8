"""The progress of shipping code: a line that changes on a terminal, printed lines elsewhere."""

from __future__ import annotations

import threading
import time
from typing import TextIO

from shunter.cli.console import is_tty, terminal_size
from shunter.cli.units import format_bytes
from shunter.terminal import clean

# Seconds between two drawings on a terminal, and between two lines elsewhere.
_REDRAW = 0.1
_REPEAT = 5.0
# Steps shorter than this are not shown on a terminal.
_PATIENCE = 0.3


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
        pause = _REDRAW if self._live else _REPEAT
        if not force and (now - self._written < pause or (self._live and now - self._began < _PATIENCE)):
            return
        self._written = now
        line = f"{self._text} {self._amount()}".strip()
        if self._live:
            self._write(f"\r\x1b[K{line[: terminal_size()[0] - 1]}")
            self._shown = True
        else:
            self._write(line + "\n")

    def _amount(self) -> str:
        """Return how much of all transfers is done, as text."""
        done = sum(done for done, _ in self._transfers.values())
        total = sum(total for _, total in self._transfers.values())
        if not total:
            return format_bytes(done) if done else ""
        return f"{format_bytes(done)} of {format_bytes(total)} ({100 * done // total} %)"

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
