"""Ignore files: ``.dockerignore`` with Docker's rules, the others with those of ``.gitignore``.

`GitRules` answers for one path with a `Verdict`; its parent directories have been asked before and were
not excluded.

Docker's rules: https://docs.docker.com/build/concepts/context/#dockerignore-files, and for what the page
leaves open the package ``moby/patternmatcher``. Git's: https://git-scm.com/docs/gitignore.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from trainyard.errors import WorkspaceError
from trainyard.regular_files import read_regular_file
from trainyard.workspace.wildmatch import NeverMatchesError, as_bytes_text, compile_pattern

DOCKERIGNORE, TORCHXIGNORE, TRAINYARDIGNORE = ".dockerignore", ".torchxignore", ".trainyardignore"


def read_lines(path: str) -> list[str] | None:
    """Return the lines of an ignore file; None if there is none.

    Raises:
        WorkspaceError: there is one that cannot be read. To go on without it could ship a secret.
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


class Verdict(Enum):
    """What the last pattern says that speaks of a path."""

    OUT = "out"
    #: A ``!pattern`` of wildcards only: it undoes patterns of its own file.
    BACK = "back"
    #: A ``!pattern`` that has something of the name in it.
    NAMED = "named"


class _Matcher(NamedTuple):
    matches: Callable[[str], object]
    verdict: Verdict
    directories_only: bool


class GitRules:
    """Patterns of one file with the syntax of ``.gitignore``.

    Args:
        lines: its lines.
        origin: its path, for messages.

    Attributes:
        notes: patterns that Git takes but that match nothing, each with its place and the reason.
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
            if matcher.verdict is Verdict.NAMED:
                self._named.append(line.removeprefix("!").strip())
        self._for_directories = [(m.matches, m.verdict) for m in reversed(matchers)]
        self._for_files = [(m.matches, m.verdict) for m in reversed(matchers) if not m.directories_only]

    def file(self, path: str) -> Verdict | None:
        """Judge a file or link by the patterns that match it; None if none does."""
        return _last_verdict(self._for_files, path)

    def directory(self, path: str) -> Verdict | None:
        """Judge a directory by the patterns that match it; None if none does."""
        return _last_verdict(self._for_directories, path)

    @property
    def names_something(self) -> bool:
        """Tell whether there is a ``!pattern`` that can bring back what other rules exclude."""
        return bool(self._named)

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
            regex = _docker_regex(text, f"{origin}:{number}")
            if regex is not None:
                self._patterns.append((regex.match, excludes))
        self._patterns.reverse()
        #: Whether something below an excluded directory may be in.
        self.has_exceptions = not all(excludes for _, excludes in self._patterns)

    def excludes(self, path: str) -> bool:
        """Tell whether a path is left out. Its parent directories need not have been asked."""
        return next((excludes for matches, excludes in self._patterns if matches(path)), False)


def _last_verdict(matchers: Sequence[tuple[Callable[[str], object], Verdict]], path: str) -> Verdict | None:
    path = as_bytes_text(path)
    return next((verdict for matches, verdict in matchers if matches(path)), None)


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
    verdict = Verdict.OUT
    if negated:
        verdict = Verdict.NAMED if text.strip("*/") else Verdict.BACK
    return _Matcher(compile_pattern(as_bytes_text(text)).fullmatch, verdict, directories_only)


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


def _docker_regex(pattern: str, place: str) -> re.Pattern[str] | None:
    if not pattern:
        raise WorkspaceError(f"{place}: '!' alone is not a pattern", hint="Write a pattern after it.")
    pattern = posixpath.normpath(pattern).lstrip("/")
    if not pattern or pattern == ".":
        return None
    try:
        # what is below a directory that matches is matched too
        return re.compile(f"\\A{_docker_translate(pattern)}(?:/.*)?\\Z", re.DOTALL)
    except (re.error, ValueError) as error:
        raise WorkspaceError(
            f"{place}: {pattern!r} is not a pattern of a .dockerignore: {error}",
            hint="Special are * ? [a-z] ** and a backslash, which takes the meaning from the next character.",
        ) from error


def _docker_translate(pattern: str) -> str:
    parts, at = [], 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*" and pattern[at : at + 1] == "*":
            at += 2 if pattern[at + 1 : at + 2] == "/" else 1
            parts.append("(?:.*/)?" if at < len(pattern) else ".*")
        elif char == "*":
            parts.append("[^/]*")
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
    return "".join(parts)


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


def ignore_file(root: str, name: str) -> list[str] | None:
    """Return the lines of an ignore file of a project; None if it has none."""
    return read_lines(os.path.join(root, name))
