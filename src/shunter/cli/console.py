"""Writing to the terminal: text, tables, JSON, messages. Plain when the stream is not a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, TextIO

from shunter.errors import BackendError, ShunterError
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
    lines = []
    at = cells[0].index("STATE") if "STATE" in headers else None
    for row in cells:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        padded[-1] = padded[-1].rstrip()
        if at is not None:
            padded[at] = padded[at].replace(row[at], paint_state(row[at], stream), 1)
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


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
