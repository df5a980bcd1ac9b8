"""Lines of logs as HTML: colours as classes, other escape sequences and control characters harmless."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from shunter.schedulers.lines import iter_lines
from shunter.terminal import clean_lines

#: How many characters of a line are shown.
LONGEST = 4000

# Colours (group 1), other sequences that change the terminal, and those with a text up to their end.
_ESCAPE = re.compile(
    r"\x1b\[([\d;]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]"
)
_BOLD = {"1": "b", "2": "faint", "3": "i", "4": "u"}
_OFF = {"22": ("b", "faint"), "23": ("i",), "24": ("u",)}


def as_html(data: bytes, matching: bytes = b"") -> Markup:
    """Return whole lines as HTML, one element each; some of them marked."""
    if not matching:
        return Markup("").join(_line(line) for line in iter_lines(data))
    wanted = iter_lines(matching)
    hit = next(wanted, None)
    shown: list[Markup] = []
    for line in iter_lines(data):
        is_hit = line == hit  # equal lines match equally
        shown.append(_line(line, " hit" if is_hit else ""))
        if is_hit:
            hit = next(wanted, None)
    return Markup("").join(shown)


def _line(line: bytes, classes: str = "") -> Markup:
    if line.endswith(b"\r"):
        classes += " over"
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    more = len(text) - LONGEST
    shown = _coloured(text[:LONGEST])
    if more > 0:
        shown += Markup('<i class="note"> … {} more characters</i>').format(more)
    return Markup('<div class="l{}">{}</div>').format(classes, shown)


def _coloured(text: str) -> Markup:
    if "\x1b" not in text:
        return escape(clean_lines(text))
    pieces: list[Markup] = []
    classes: set[str] = set()
    place = 0
    for match in _ESCAPE.finditer(text):
        pieces.append(_span(text[place : match.start()], classes))
        place = match.end()
        if match.group(1) is not None:
            classes = _changed(classes, match.group(1))
    pieces.append(_span(text[place:], classes))
    return Markup("").join(pieces)


def _span(text: str, classes: set[str]) -> Markup:
    shown = escape(clean_lines(text))
    if not classes or not text:
        return shown
    return Markup('<span class="{}">{}</span>').format(" ".join(sorted(classes)), shown)


def _changed(classes: set[str], codes: str) -> set[str]:
    """Return the classes after an SGR sequence (ECMA-48, 8.3.117); colours of 256 and more are left out."""
    now = set(classes)
    numbers = [code.lstrip("0") or "0" for code in codes.split(";")]
    for index, code in enumerate(numbers):
        if code in ("38", "48"):
            del numbers[index + 1 :]
        elif code == "0":
            now.clear()
        elif code in _BOLD:
            now.add(_BOLD[code])
        elif code in _OFF:
            now.difference_update(_OFF[code])
        elif code == "39" or (len(code) == 2 and code[0] in "39" and code[1] in "01234567"):
            now = {name for name in now if not name.startswith("c")}
            if code != "39":
                now.add(f"c{code[1]}")
    return now
