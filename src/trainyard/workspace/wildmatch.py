"""Git's wildcards as regular expressions.

Git matches the bytes of a path, so ``?`` stands for one byte, and ``é`` needs two of them. The expressions
are over text in which each character stands for one byte; `as_bytes_text` makes it from a path.

The rules are those of ``wildmatch.c`` and ``dir.c`` in Git's sources, and of https://git-scm.com/docs/gitignore.
"""

from __future__ import annotations

import os
import re
import string

#: Character classes as Git has them: ASCII only, and vertical tab and form feed are not white space.
_CLASSES = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, range(32))) + "\x7f",
    "digit": string.digits,
    "graph": "".join(map(chr, range(33, 127))),
    "lower": string.ascii_lowercase,
    "print": "".join(map(chr, range(32, 127))),
    "punct": string.punctuation,
    "space": " \t\n\r",
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}
_SPECIAL = re.compile(r"[*?\[\\]")
_ALL = frozenset(map(chr, range(256)))


class NeverMatchesError(ValueError):
    """Git takes the pattern, but it matches no path; the message says why."""


def as_bytes_text(path: str) -> str:
    """Return a path as text with one character per byte."""
    return path if path.isascii() else os.fsencode(path).decode("latin-1")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression whose ``fullmatch`` tells whether a path is what a pattern names.

    Args:
        pattern: without ``!`` before and ``/`` behind it, and with one character per byte.

    Raises:
        NeverMatchesError: no path can match.
    """
    if "/" not in pattern:  # the last part of a path, wherever it is
        return re.compile("(?:.*/)?" + _translate(pattern), re.DOTALL)
    pattern = pattern.removeprefix("/")
    special = _SPECIAL.search(pattern)
    # What comes before the first special character is compared as it is, and the rest on its own. That is
    # why Git takes the ** of "a**/b" for one that spans directories.
    start = special.start() if special else len(pattern)
    return re.compile(re.escape(pattern[:start]) + _translate(pattern[start:]), re.DOTALL)


def _translate(pattern: str) -> str:
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "*":
            text, at = _stars(pattern, at)
        elif char == "[":
            text, at = _set(pattern, at + 1)
        elif char == "?":
            text, at = "[^/]", at + 1
        elif char == "\\":
            if at + 1 == len(pattern):
                raise NeverMatchesError("it ends in a backslash")
            text, at = re.escape(pattern[at + 1]), at + 2
        else:
            text, at = re.escape(char), at + 1
        parts.append(text)
    return "".join(parts)


def _stars(pattern: str, at: int) -> tuple[str, int]:
    """Return what ``*`` or ``**`` at a place means, and where the pattern goes on."""
    end = at
    while pattern[end : end + 1] == "*":
        end += 1
    rest = pattern[end:]
    starts_part = at == 0 or pattern[at - 1] == "/"
    if end - at > 1 and starts_part and (not rest or rest.startswith(("/", "\\/"))):
        # "**/" stands for nothing, too
        return ("(?:.*/)?", end + 1) if rest.startswith("/") else (".*", end)
    return "[^/]*", end


def _set(pattern: str, at: int) -> tuple[str, int]:
    """Return ``[...]``, of which ``at`` is the first character within, and where the pattern goes on."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    members: set[str] = set()
    previous = ""
    first = True
    while first or pattern[at : at + 1] != "]":
        first = False
        char = _member(pattern, at)
        if char == "\\":
            at += 1
            previous = _member(pattern, at)
            members.add(previous)
        elif char == "-" and previous and pattern[at + 1 : at + 2] not in ("", "]"):
            at += 1
            if pattern[at] == "\\":
                at += 1
            members.update(map(chr, range(ord(previous), ord(_member(pattern, at)) + 1)))
            previous = ""
        elif char == "[" and pattern[at + 1 : at + 2] == ":":
            end = pattern.find("]", at + 2)
            if end < 0:
                raise NeverMatchesError("its [ is not closed")
            if end > at + 2 and pattern[end - 1] == ":":
                name = pattern[at + 2 : end - 1]
                if name not in _CLASSES:
                    raise NeverMatchesError(f"there is no class [:{name}:]")
                members.update(_CLASSES[name])
                previous, at = "", end
            else:
                members.add(char)
                previous = char
        else:
            members.add(char)
            previous = char
        at += 1
    found = (_ALL - members if negated else members) - {"/"}
    if not found:
        raise NeverMatchesError("its [] has no character that a name can have")
    return "[" + "".join(f"\\x{ord(char):02x}" for char in sorted(found)) + "]", at + 1


def _member(pattern: str, at: int) -> str:
    if at >= len(pattern):
        raise NeverMatchesError("its [ is not closed")
    return pattern[at]
