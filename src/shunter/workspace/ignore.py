"""Ignore files: ``.dockerignore`` with Docker's rules, the others with those of ``.gitignore``.

`GitRules` judges one path, whose parent directories must have been judged before, and not been excluded.

Patterns come with other people's repositories. As a regular expression, which is what the library
``pathspec`` makes of each, one with many stars can take for ever. `_Pattern` compares those in a time that
grows with pattern times path.

Docker's rules: https://docs.docker.com/build/concepts/context/#dockerignore-files, and for what the page
leaves open the package ``moby/patternmatcher``. Git's: https://git-scm.com/docs/gitignore, and in its sources
``wildmatch.c`` and ``dir.c``.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from shunter.errors import WorkspaceError
from shunter.paths import read_regular_file

DOCKERIGNORE, TORCHXIGNORE, SHUNTERIGNORE = ".dockerignore", ".torchxignore", ".shunterignore"
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
#: Up to this many wildcards, a regular expression takes at most the square of the path's length.
_MOST_FOR_REGEX = 2
_ALL = frozenset(map(chr, range(256)))


def read_lines(path: str) -> list[str] | None:
    """Return the lines of an ignore file; None if it does not exist.

    Raises:
        WorkspaceError: it exists but cannot be read. Without it, a secret might be shipped.
    """
    try:
        text = read_regular_file(path).decode("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WorkspaceError(
            f"cannot read {path}: {error.strerror}",
            hint="Make it an ordinary file that you may read, or remove it.",
        ) from error
    return [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]


class IgnoreDecision(Enum):
    """What the last pattern that matches a path says."""

    OUT = "out"
    #: A ``!pattern`` of wildcards only: it undoes only patterns of the same file.
    BACK = "back"
    #: A ``!pattern`` that contains part of the name.
    NAMED = "named"


class _Wildcard(Enum):
    """The parts of a pattern that stand for any number of characters, as regular expressions."""

    NAME = "[^/]*"
    PATH = ".*"
    DIRECTORIES = "(?:.*/)?"


def _make_matcher(parts: Iterable[str | _Wildcard], *, below: bool = False) -> Callable[[str], object]:
    """Return a function that compares a path with a pattern; the arguments are those of `_Pattern`."""
    parts = list(parts)
    if sum(isinstance(part, _Wildcard) for part in parts) > _MOST_FOR_REGEX:
        return _Pattern(parts, below=below).matches
    text = "".join(part.value if isinstance(part, _Wildcard) else part for part in parts)
    return re.compile(text + ("(?:/.*)?" if below else ""), re.DOTALL).fullmatch


class _Pattern:
    """A pattern of many wildcards that is compared with whole paths.

    Args:
        parts: wildcards, and regular expressions that match one character each.
        below: whether the pattern also stands for what is below a directory that it matches.
    """

    def __init__(self, parts: Iterable[str | _Wildcard], *, below: bool = False) -> None:
        self._below = below
        #: Wildcards, and what stands between them with its length.
        self._steps: list[_Wildcard | tuple[re.Pattern[str], int]] = []
        for is_text, group in groupby(parts, lambda part: isinstance(part, str)):
            if is_text:
                characters = [str(part) for part in group]
                # it only looks ahead, so that `finditer` finds overlapping places too
                self._steps.append((re.compile(f"(?={''.join(characters)})", re.DOTALL), len(characters)))
            else:
                self._steps += [part for part in group if isinstance(part, _Wildcard)]

    def matches(self, path: str) -> bool:
        """Tell whether the pattern stands for the path."""
        ends = 1  # bit n is set if the steps so far can stand for the first n characters
        for step in self._steps:
            if isinstance(step, _Wildcard):
                ends = _after_wildcard(step, ends, path)
                continue
            regex, length = step
            if ends == 1:
                ends = 1 << length if regex.match(path) else 0
            else:
                ends = (ends & sum(1 << found.start() for found in regex.finditer(path))) << length
            if not ends:
                return False
        whole = 1 << len(path)
        return bool(ends & (whole | _slashes(path) if self._below else whole))


def _after_wildcard(wildcard: _Wildcard, ends: int, path: str) -> int:
    if wildcard is _Wildcard.NAME:
        names = (1 << len(path)) - 1 & ~_slashes(path)
        # the carry of this sum runs from each end to the next slash and changes the bits on its way
        return ends | names ^ (names + (ends & names))
    first = ends & -ends
    later = (2 << len(path)) - 2 * first
    return ends | later if wildcard is _Wildcard.PATH else ends | _slashes(path) << 1 & later


@lru_cache(maxsize=1)  # one path is compared with many patterns
def _slashes(path: str) -> int:
    return sum(1 << found.start() for found in re.finditer("/", path))


class _Matcher(NamedTuple):
    matches: Callable[[str], object]
    decision: IgnoreDecision
    directories_only: bool


class GitRules:
    """Patterns of one file with the syntax of ``.gitignore``.

    Args:
        lines: its lines.
        origin: its path, for messages.

    Attributes:
        notes: patterns that Git accepts but that match nothing, each with its place and the reason.
    """

    def __init__(self, lines: Sequence[str], origin: str) -> None:
        matchers: list[_Matcher] = []
        self.notes: list[str] = []
        self._named: list[str] = []
        for number, line in enumerate(lines, 1):
            try:
                matcher = _git_matcher(line)
            except NeverMatchesError as error:
                self.notes.append(f"{origin}:{number}: the pattern {line!r} matches nothing: {error}")
                continue
            if matcher is None:
                continue
            matchers.append(matcher)
            if matcher.decision is IgnoreDecision.NAMED:
                self._named.append(line.removeprefix("!").strip())
        self._for_directories = [(m.matches, m.decision) for m in reversed(matchers)]
        self._for_files = [(m.matches, m.decision) for m in reversed(matchers) if not m.directories_only]

    def file(self, path: str) -> IgnoreDecision | None:
        """Judge a file or link by the patterns that match it; None if none does."""
        return _last_decision(self._for_files, path)

    def directory(self, path: str) -> IgnoreDecision | None:
        """Judge a directory by the patterns that match it; None if none does."""
        return _last_decision(self._for_directories, path)

    def may_name_below(self, directory: str) -> bool:
        """Tell whether a ``!pattern`` that starts at the root leads into this directory."""
        return any(_leads_into(pattern, directory) for pattern in self._named)


class DockerRules:
    """Patterns of a ``.dockerignore``: anchored at the root, and the last that matches decides.

    Args:
        lines: its lines.
        origin: its path, for messages.

    Raises:
        WorkspaceError: a line is not a pattern.
    """

    def __init__(self, lines: Sequence[str], origin: str) -> None:
        self._patterns: list[tuple[Callable[[str], object], bool]] = []
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or line.startswith("#"):
                continue
            excludes = not text.startswith("!")
            text = text.removeprefix("!").strip()
            matches = self._matcher(text, f"{origin}:{number}")
            if matches is not None:
                self._patterns.append((matches, excludes))
        self._patterns.reverse()
        #: Whether something below an excluded directory may be in.
        self.has_exceptions = not all(excludes for _, excludes in self._patterns)

    def excludes(self, path: str) -> bool:
        """Tell whether a path is left out. Its parent directories need not have been asked."""
        return next((excludes for matches, excludes in self._patterns if matches(path)), False)

    def _matcher(self, pattern: str, place: str) -> Callable[[str], object] | None:
        return _docker_matcher(pattern, place)


class TorchxRules(DockerRules):
    """Patterns of a ``.torchxignore``: as Docker's, but ``*`` and ``?`` stand for slashes too."""

    def _matcher(self, pattern: str, place: str) -> Callable[[str], object] | None:
        match = re.compile(fnmatch.translate(pattern.strip("/"))).match
        return lambda path: any(match(each) for each in _with_parents(path))


def _with_parents(path: str) -> Iterator[str]:
    """Yield a path and the directories that it is in."""
    while path:
        yield path
        path = posixpath.dirname(path)


def _last_decision(
    matchers: Sequence[tuple[Callable[[str], object], IgnoreDecision]], path: str
) -> IgnoreDecision | None:
    path = _as_bytes_text(path)
    return next((decision for matches, decision in matchers if matches(path)), None)


def _git_matcher(line: str) -> _Matcher | None:
    """Return what a line says; None for a comment or an empty line.

    Raises:
        NeverMatchesError: it is a pattern that no path can match.
    """
    text = _without_trailing_spaces(line)
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[1:] if negated else text
    directories_only = text.endswith("/")
    text = text[:-1] if directories_only else text
    if not text:
        raise NeverMatchesError("it names nothing")
    decision = IgnoreDecision.OUT
    if negated:
        decision = IgnoreDecision.NAMED if text.strip("*/") else IgnoreDecision.BACK
    return _Matcher(_compile(_as_bytes_text(text)), decision, directories_only)


def _without_trailing_spaces(line: str) -> str:
    """Remove the spaces at the end of a line, up to one that a backslash precedes."""
    end = at = 0
    while at < len(line):
        if line[at] == "\\":
            at += 1
            end = at + 1
        elif line[at] != " ":
            end = at + 1
        at += 1
    return line[:end]


def _leads_into(pattern: str, directory: str) -> bool:
    wanted = pattern.strip("/").split("/")
    for part, want in zip(directory.split("/"), wanted, strict=False):
        if want == "**":
            return True
        if not fnmatch.fnmatchcase(part, want):
            return False
    return directory.count("/") + 1 <= len(wanted)


def _docker_matcher(pattern: str, place: str) -> Callable[[str], object] | None:
    if not pattern:
        raise WorkspaceError(f"{place}: '!' alone is not a pattern", hint="Write a pattern after it.")
    pattern = posixpath.normpath(pattern).lstrip("/")
    if not pattern or pattern == ".":
        return None
    try:
        return _make_matcher(_docker_parts(pattern), below=True)
    except (re.error, ValueError) as error:
        raise WorkspaceError(
            f"{place}: {pattern!r} is not a pattern of a .dockerignore: {error}",
            hint="Special characters are * ? [a-z] ** and a backslash, which escapes the next character.",
        ) from error


def _docker_parts(pattern: str) -> list[str | _Wildcard]:
    parts: list[str | _Wildcard] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*" and pattern[at : at + 1] == "*":
            at += 2 if pattern[at + 1 : at + 2] == "/" else 1
            parts.append(_Wildcard.DIRECTORIES if at < len(pattern) else _Wildcard.PATH)
        elif char == "*":
            parts.append(_Wildcard.NAME)
        elif char == "?":
            parts.append("[^/]")
        elif char == "[":
            text, at = _docker_class(pattern, at)
            parts.append(text)
        elif char == "\\":
            if at == len(pattern):
                raise ValueError("it ends in a backslash")
            parts.append(re.escape(pattern[at]))
            at += 1
        else:
            parts.append(re.escape(char))
    return parts


def _docker_class(pattern: str, at: int) -> tuple[str, int]:
    """Return ``[...]`` as a regular expression, and where it ends."""
    negated = pattern[at : at + 1] == "^"
    at += negated
    items = []
    while at < len(pattern) and pattern[at] != "]":
        at += pattern[at] == "\\"
        if at >= len(pattern):
            break
        items.append("-" if pattern[at] == "-" else re.escape(pattern[at]))
        at += 1
    if at >= len(pattern) or not items:
        raise ValueError("a [ is not closed" if items else "[] is empty")
    return f"[{'^/' if negated else ''}{''.join(items)}]", at + 1


# ---- Git's patterns


class NeverMatchesError(ValueError):
    """Git accepts the pattern, but it matches no path; the message says why."""


def _as_bytes_text(path: str) -> str:
    """Return a path as text with one character per byte: Git matches bytes, so ``?`` is half of an ``é``."""
    return path if path.isascii() else os.fsencode(path).decode("latin-1")


def _compile(pattern: str) -> Callable[[str], object]:
    """Return a function that tells whether a path is what a pattern names.

    Args:
        pattern: without ``!`` before and ``/`` behind it, and with one character per byte.

    Raises:
        NeverMatchesError: no path can match.
    """
    if "/" not in pattern:  # the last part of a path, wherever it is
        return _make_matcher([_Wildcard.DIRECTORIES, *_git_parts(pattern)])
    pattern = pattern.removeprefix("/")
    special = _SPECIAL.search(pattern)
    # What comes before the first special character is compared as it is, and the rest separately. That is why
    # the ** of "a**/b" spans directories in Git.
    start = special.start() if special else len(pattern)
    return _make_matcher([*map(re.escape, pattern[:start]), *_git_parts(pattern[start:])])


def _git_parts(pattern: str) -> Iterator[str | _Wildcard]:
    at = 0
    while at < len(pattern):
        char = pattern[at]
        part: str | _Wildcard
        if char == "*":
            part, at = _stars(pattern, at)
        elif char == "[":
            part, at = _set(pattern, at + 1)
        elif char == "?":
            part, at = "[^/]", at + 1
        elif char == "\\":
            if at + 1 == len(pattern):
                raise NeverMatchesError("it ends in a backslash")
            part, at = re.escape(pattern[at + 1]), at + 2
        else:
            part, at = re.escape(char), at + 1
        yield part


def _stars(pattern: str, at: int) -> tuple[_Wildcard, int]:
    """Return what ``*`` or ``**`` at a place means, and where the pattern goes on."""
    end = at
    while pattern[end : end + 1] == "*":
        end += 1
    rest = pattern[end:]
    starts_part = at == 0 or pattern[at - 1] == "/"
    if end - at > 1 and starts_part and (not rest or rest.startswith(("/", "\\/"))):
        # "**/" stands for nothing, too
        return (_Wildcard.DIRECTORIES, end + 1) if rest.startswith("/") else (_Wildcard.PATH, end)
    return _Wildcard.NAME, end


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
