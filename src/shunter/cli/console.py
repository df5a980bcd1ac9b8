"""Writing to the terminal: text, tables, JSON, messages, progress. Plain where there is no terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

from shunter.errors import EXIT_INTERRUPTED, BackendError, ShunterError
from shunter.redaction import REDACTED, redact_text, secrets_in
from shunter.terminal import clean, coloured, render

RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN = "31", "32", "33", "34", "35", "36"
BOLD, FAINT = "1", "2"

STATE_COLOURS = {
    "RUNNING": CYAN,
    "SUCCEEDED": GREEN,
    "FAILED": RED,
    "CANCELLED": YELLOW,
    "PENDING": FAINT,
    "SUSPENDED": YELLOW,
    "SUBMITTED": FAINT,
    "UNREACHABLE": MAGENTA,
}


class OutputClosed(Exception):
    """The reader of the output has closed it (``| head``). The command ends without a message."""


class OutputError(BackendError):
    """The output cannot be written, for example because the disk is full."""


class Interrupted(KeyboardInterrupt):
    """The user has interrupted a command, which ends with this message."""

    exit_code = EXIT_INTERRUPTED


@contextlib.contextmanager
def interrupt_message(message: str) -> Iterator[None]:
    """Make a command end with this message when the user presses Ctrl-C in the block."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"\n{message}") from None  # the terminal shows ^C on the line before


def output_failed(error: OSError) -> NoReturn:
    """Raise the exception for a failed write to stdout or stderr."""
    if isinstance(error, BrokenPipeError):
        raise OutputClosed from error
    raise OutputError(f"cannot write the output: {error.strerror or error}") from error


def is_tty(stream: TextIO | None) -> bool:
    """Tell whether a stream is a terminal; a closed one is not."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def wants_colour(stream: TextIO | None) -> bool:
    """Tell whether to colour what is written: on a capable terminal, unless ``NO_COLOR`` is set."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE", "0") != "0":
        return True
    return is_tty(stream) and os.environ.get("TERM") != "dumb"


def ask(question: str) -> bool:
    """Ask a question on the terminal, where no is the default; returns whether the answer is yes."""
    sys.stderr.write(render(f"{question} [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def paint(text: str, colour: str, stream: TextIO | None) -> str:
    """Colour a text if the stream wants colours; only `out` and `note` render them."""
    return coloured(text, colour) if colour and wants_colour(stream) else text


def paint_state(state: str, stream: TextIO | None) -> str:
    """Colour the name of a state."""
    return paint(state, STATE_COLOURS.get(state, ""), stream)


def out(text: str = "") -> None:
    """Print a line of the command's result on stdout and flush. Control characters are shown as escapes."""
    _write(sys.stdout, render(text) + "\n")


def note(text: str = "") -> None:
    """Print a line that is not part of the result on stderr. See `out`."""
    _write(sys.stderr, render(text) + "\n")


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        output_failed(error)


def warn(text: str) -> None:
    """Print a warning."""
    note(f"{paint('warning:', YELLOW, sys.stderr)} {_indented(text)}")


def show_error(error: ShunterError) -> None:
    """Print an error and its hint, without secrets of the command line."""
    note(f"{paint('error:', RED, sys.stderr)} {_indented(without_secrets(error.message))}")
    if error.hint:
        note(_without_given_secrets(error.hint))


def _indented(message: str) -> str:
    """Indent all lines but the first, so that foreign text cannot look like one of our messages."""
    first, *rest = message.split("\n")
    return "\n".join([first, *(line if line[:1] in ("", " ", "\t") else f"  {line}" for line in rest)])


def without_secrets(text: str) -> str:
    """Return a message without secrets: many repeat the invalid value."""
    return redact_text(_without_given_secrets(text))


def _without_given_secrets(text: str) -> str:
    for secret in sorted(secrets_in(sys.argv[1:]), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return text


def print_json(data: Any) -> None:
    """Print a value as JSON, in ASCII for any terminal and pipe."""
    out(json.dumps(data, default=str, indent=2))


def print_result(as_json: bool, data: Any, lines: Iterable[str]) -> None:
    """Print the result of a command: its data as JSON, or else the lines for a person."""
    if as_json:
        print_json(data)
        return
    for line in lines:
        out(line)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO | None = None) -> str:
    """Return a table as text, its columns aligned. A column headed STATE is coloured."""
    cells = [list(headers), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    states = {headers.index("STATE")} if "STATE" in headers else set()
    lines = []
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        padded[-1] = padded[-1].rstrip()
        for at in states:
            padded[at] = padded[at].replace(row[at], paint_state(row[at], stream), 1)
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def table_width(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return how many columns of the terminal a table takes."""
    return sum(max(map(len, column)) + 2 for column in zip(headers, *rows, strict=True)) - 2


def terminal_size(descriptor: int = 2) -> tuple[int, int]:
    """Return columns and lines of the terminal, by default the one on stderr."""
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return 80, 24
    return size.columns or 80, size.lines or 24


def counted(number: int, noun: str) -> str:
    """Return ``1 file``, ``2 files``, ``2 directories``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


def format_time(stamp: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time as local time; "-" for None."""
    return "-" if stamp is None else time.strftime(form, time.localtime(stamp))


def format_bytes(count: float) -> str:
    """Return a number of bytes with a unit: "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"


class Screen:
    """Lines at the bottom of a terminal, which are redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = 0

    def draw(self, lines: Sequence[str]) -> None:
        """Redraw; lines beyond the height of the terminal are only counted."""
        columns, height = terminal_size()
        room = max(height - 2, 1)
        if len(lines) > room:
            lines = [*lines[: room - 1], f"... and {len(lines) - room + 1} more"]
        # a line break would make the count of drawn lines wrong
        one_line = (render(line.replace("\n", " ").replace("\t", " ")) for line in lines)
        text = "".join(_cut(line, columns) + "\x1b[K\n" for line in one_line)
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._write(f"{up}{text}\x1b[J")
        self._drawn = len(lines)

    def finish(self, lines: Sequence[str]) -> None:
        """Replace the drawing by all lines, which stay."""
        self.clear()
        self._write("".join(f"{render(line)}\n" for line in lines))

    def clear(self) -> None:
        """Remove the drawing."""
        if self._drawn:
            self._write(f"\x1b[{self._drawn}F\x1b[J")
            self._drawn = 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _cut(line: str, columns: int) -> str:
    """Cut a line that would wrap. Colours take no columns."""
    width, kept = 0, ""
    for part in re.findall(r"\x1b\[[^m]*m|.", line):
        if not part.startswith("\x1b"):
            if width == columns - 1:
                return kept + "\x1b[0m"
            width += 1
        kept += part
    return line


class TerminalProgress:
    """A `shunter.progress.Progress` that writes to a stream; on a terminal the last line is redrawn."""

    PAUSE_LIVE, PAUSE_LINES = 0.1, 5.0  # seconds between two drawings, and between two lines elsewhere
    PATIENCE = 0.3  # steps shorter than this are not shown on a terminal

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._live = is_tty(stream)
        self._lock = threading.Lock()
        self._began = self._written = time.monotonic()
        self._text = ""
        self._transfers: dict[str, tuple[int, int]] = {}
        self._is_drawn = False

    def step(self, text: str) -> None:
        """Begin a step."""
        with self._lock:
            self._text = clean(text)
            self._transfers.clear()
            if self._live:
                self._draw()
            else:
                self._write(self._text + "\n")

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
        self.output(text)
        self._text = ""
        self._transfers.clear()

    def clear(self) -> None:
        """Remove the changing line."""
        with self._lock:
            self._erase()

    def _draw(self) -> None:
        now = time.monotonic()
        if self._live and now - self._began < self.PATIENCE:
            return
        if now - self._written < (self.PAUSE_LIVE if self._live else self.PAUSE_LINES):
            return
        self._written = now
        done = sum(done for done, _ in self._transfers.values())
        total = sum(total for _, total in self._transfers.values())
        amount = format_bytes(done) if done else ""
        if total:
            amount = f"{format_bytes(done)} of {format_bytes(total)} ({100 * done // total} %)"
        line = f"{self._text} {amount}".strip()
        if self._live:
            line = f"\r\x1b[K{line[: terminal_size()[0] - 1]}"
            self._is_drawn = True
        self._write(line if self._live else line + "\n")

    def _erase(self) -> None:
        if self._is_drawn:
            self._write("\r\x1b[K")
            self._is_drawn = False

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader is gone; the submission continues
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
