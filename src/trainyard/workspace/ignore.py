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
from typing import Any, NamedTuple

from trainyard.workspace.errors import WorkspaceError

DOCKERIGNORE, TORCHXIGNORE, TRAINYARDIGNORE = ".dockerignore", ".torchxignore", ".trainyardignore"
#: The group by which pathspec marks that a pattern matched a directory, not the path's last part.
_DIRECTORY_GROUP = "ps_d"


def read_lines(path: str) -> list[str] | None:
    """Return the lines of an ignore file; None if there is none.

    Raises:
        WorkspaceError: there is one that cannot be read. To go on without it could ship a secret.
    """
    try:
        with open(path, "rb") as file:
            text = file.read().decode("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WorkspaceError(
            f"cannot read {path}: {error.strerror}", hint="Mend its permissions, or remove it."
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
    search: Callable[[str], re.Match[str] | None]
    verdict: Verdict
    directories_only: bool


class GitRules:
    """Patterns of one file with the syntax of ``.gitignore``.

    Args:
        lines: its lines.
        origin: its path, for messages.
        strict: whether a pattern that does not parse is an error; Git itself ignores such.
    """

    def __init__(self, lines: Sequence[str], origin: str, *, strict: bool = True) -> None:
        matchers: list[_Matcher] = []
        self._named: list[str] = []
        for number, line in enumerate(lines, 1):
            matcher = _git_matcher(line, f"{origin}:{number}", strict)
            if matcher is None:
                continue
            matchers.append(matcher)
            if matcher.verdict is Verdict.NAMED:
                self._named.append(line.removeprefix("!").strip())
        self._for_directories = [(m.search, m.verdict) for m in reversed(matchers)]
        self._for_files = [(m.search, m.verdict) for m in reversed(matchers) if not m.directories_only]

    def file(self, path: str) -> Verdict | None:
        """Judge a file or link by the patterns that speak of itself; None if none does."""
        for search, verdict in self._for_files:
            match = search(path)
            if match is not None and _is_whole(match):
                return verdict
        return None

    def directory(self, path: str) -> Verdict | None:
        """Judge a directory by the patterns that speak of itself; None if none does."""
        for search, verdict in self._for_directories:
            match = search(path)
            if match is not None and _is_whole(match):
                return verdict
        return None

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
    """

    def __init__(self, lines: Sequence[str], origin: str) -> None:
        from pathspec import PathSpec
        from pathspec.pattern import RegexPattern

        patterns = []
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or line.startswith("#"):
                continue
            exclude = not text.startswith("!")
            text = text.removeprefix("!").strip()
            regex = _docker_regex(text, f"{origin}:{number}")
            if regex is not None:
                patterns.append(RegexPattern(regex, exclude))
        self._spec: Any = PathSpec(patterns)
        #: Whether something below an excluded directory may be in.
        self.has_exceptions = any(not pattern.include for pattern in patterns)

    def excludes(self, path: str) -> bool:
        """Tell whether a path is left out. Its parent directories need not have been asked."""
        return self._spec.check_file(path).include is True


def _git_matcher(line: str, place: str, strict: bool) -> _Matcher | None:
    """Return what a line says; None for a comment."""
    from pathspec import GitIgnoreSpec

    text = line
    while text.endswith(" ") and not text.endswith("\\ "):
        text = text[:-1]
    directories_only = text.endswith("/")
    text = text.removesuffix("/") if directories_only else text
    try:
        if text == "!":
            raise ValueError("there is nothing after the !")
        pattern: Any = next(iter(GitIgnoreSpec.from_lines([text]).patterns), None)
    except ValueError as error:
        if not strict:
            return None
        raise WorkspaceError(
            f"{place}: {line!r} is not a pattern of an ignore file",
            hint="The syntax is that of .gitignore, see https://git-scm.com/docs/gitignore.",
        ) from error
    if pattern is None or pattern.include is None:
        return None
    verdict = Verdict.OUT
    if not pattern.include:
        verdict = Verdict.NAMED if text.strip("!*/") else Verdict.BACK
    return _Matcher(pattern.regex.search, verdict, directories_only)


def _is_whole(match: re.Match[str]) -> bool:
    """Tell whether a match is with the path itself, not with a directory above it."""
    return match.groupdict().get(_DIRECTORY_GROUP) is None


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
