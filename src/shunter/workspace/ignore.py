"""Ignore files: those of Docker, of TorchX, and of Git, each with its own rules.

Docker's rules: https://docs.docker.com/build/concepts/context/#dockerignore-files, and for what the page
leaves open the package ``moby/patternmatcher``. Git's: https://git-scm.com/docs/gitignore.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum

from shunter.errors import WorkspaceError
from shunter.paths import read_regular_file

DOCKERIGNORE, TORCHXIGNORE, SHUNTERIGNORE = ".dockerignore", ".torchxignore", ".shunterignore"
#: Character classes as Git has them: ASCII only, and vertical tab and form feed are not white space.
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t\n\r",
    "upper": "A-Z",
    "xdigit": "0-9a-fA-F",
}
_CLASS = re.compile(r"\[:([^]]*):\]")
#: Any part of a name, of a path, and any number of whole directories.
_NAME, _PATH, _DIRECTORIES = "[^/]*", ".*", "(?:.*/)?"


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


# ---- patterns


Matcher = Callable[[str], object]


def _matcher(parts: Iterable[str]) -> Matcher:
    """Return a function that compares paths with a pattern, given as regular expressions of its parts.

    Raises:
        re.error: one of them is wrong.
    """
    return re.compile("".join(parts), re.DOTALL).fullmatch


def _parts(pattern: str, *, is_git: bool) -> Iterator[str]:
    """Yield the parts of a pattern of Git or Docker, as regular expressions.

    Raises:
        ValueError: it is no pattern; says why.
    """
    at = 0
    while at < len(pattern):
        char = pattern[at]
        start, at = at, at + 1
        if char == "*":
            while pattern[at : at + 1] == "*":
                at += 1
            # to Git, two stars mean directories only where they are a whole part of a path
            is_part = pattern[:start][-1:] in ("", "/") and pattern[at : at + 1] in ("", "/")
            if at - start == 1 or (is_git and not is_part):
                yield _NAME
            elif at < len(pattern):
                at += pattern[at] == "/"
                yield _DIRECTORIES
            else:
                yield _PATH
        elif char == "?":
            yield "[^/]"
        elif char == "[":
            text, at = _character_set(pattern, at)
            yield text
        else:
            char, at = _character(pattern, start)
            yield re.escape(char)


def _character_set(pattern: str, at: int) -> tuple[str, int]:
    """Return ``[...]`` as a regular expression, and where it ends; ``at`` is the first character within."""
    is_negated = pattern[at : at + 1] in ("!", "^")
    at += is_negated
    members = ""
    while not members or pattern[at : at + 1] != "]":
        if name := _CLASS.match(pattern, at):
            if name[1] not in _CLASSES:
                raise ValueError(f"there is no class [:{name[1]}:]")
            members += _CLASSES[name[1]]
            at = name.end()
            continue
        if at >= len(pattern):
            raise ValueError("its [ is not closed")
        first, at = _character(pattern, at)
        last = first
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
            last, at = _character(pattern, at + 1)
        members += f"{re.escape(first)}-{re.escape(last)}"
    return f"(?!/)[{'^' if is_negated else ''}{members}]", at + 1


def _character(pattern: str, at: int) -> tuple[str, int]:
    """Return the character at a place, which a backslash may precede, and where the next one is."""
    at += pattern[at] == "\\"
    if at >= len(pattern):
        raise ValueError("it ends in a backslash")
    return pattern[at], at + 1


# ---- Git


class IgnoreDecision(Enum):
    """What the last pattern that matches a path says."""

    OUT = "out"
    #: A ``!pattern`` of wildcards only: it undoes only patterns of the same file.
    BACK = "back"
    #: A ``!pattern`` that contains part of the name.
    NAMED = "named"


class GitRules:
    """Patterns of one file with the syntax of ``.gitignore``.

    Args:
        lines: its lines.
        origin: its path, for messages.

    Attributes:
        notes: patterns that Git accepts but that match nothing, each with its place and the reason.
    """

    def __init__(self, lines: Sequence[str], origin: str) -> None:
        self.notes: list[str] = []
        self._named: list[str] = []
        #: Matcher, decision, and whether it is for directories only; the last pattern comes first.
        self._patterns: list[tuple[Matcher, IgnoreDecision, bool]] = []
        for number, line in enumerate(lines, 1):
            text = re.sub(r"(?<!\\) +$", "", line)
            if text and not text.startswith("#"):
                try:
                    self._add(text)
                except (ValueError, re.error) as error:
                    place = f"{origin}:{number}"
                    self.notes.append(f"{place}: the pattern {line!r} matches nothing: {error}")

    def _add(self, text: str) -> None:
        is_negated = text.startswith("!")
        pattern = text[is_negated:].removesuffix("/")
        if not pattern:
            raise ValueError("it names nothing")
        parts = list(_parts(pattern.removeprefix("/"), is_git=True))
        if "/" not in pattern:  # the last part of a path, wherever it is
            parts.insert(0, _DIRECTORIES)
        decision = IgnoreDecision.OUT
        if is_negated:
            decision = IgnoreDecision.NAMED if pattern.strip("*/") else IgnoreDecision.BACK
        self._patterns.insert(0, (_matcher(parts), decision, text.endswith("/")))
        if decision is IgnoreDecision.NAMED:
            self._named.append(pattern)

    def decide(self, path: str, *, is_directory: bool) -> IgnoreDecision | None:
        """Judge a path by the patterns that match it; None if none does.

        Its parent directories must have been judged before, and not been left out.
        """
        for matches, decision, for_directories in self._patterns:
            if (is_directory or not for_directories) and matches(path):
                return decision
        return None

    def may_name_below(self, directory: str) -> bool:
        """Tell whether a ``!pattern`` that starts at the root leads into this directory."""
        return any(_leads_into(pattern, directory) for pattern in self._named)


def _leads_into(pattern: str, directory: str) -> bool:
    names = pattern.strip("/").split("/")
    for part, name in zip(directory.split("/"), names, strict=False):
        if name == "**":
            return True
        if not fnmatch.fnmatchcase(part, name):
            return False
    return directory.count("/") + 1 <= len(names)


# ---- Docker and TorchX


class DockerRules:
    """Patterns of a ``.dockerignore``: anchored at the root, and the last that matches decides.

    Args:
        lines: its lines.
        origin: its path, for messages.

    Raises:
        WorkspaceError: a line is not a pattern.
    """

    def __init__(self, lines: Sequence[str], origin: str) -> None:
        #: Matcher, and whether it excludes; the last pattern comes first.
        self._patterns: list[tuple[Matcher, bool]] = []
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or line.startswith("#"):
                continue
            pattern = text.removeprefix("!").strip()
            try:
                matches = self._matcher(pattern)
            except (re.error, ValueError) as error:
                raise WorkspaceError(
                    f"{origin}:{number}: {text!r} is not a pattern of a .dockerignore: {error}",
                    hint="Special characters are * ? [a-z] ** and a backslash, which escapes the next"
                    " character; ! includes what the pattern after it names.",
                ) from error
            self._patterns.insert(0, (matches, not text.startswith("!")))
        #: Whether something below an excluded directory may be in.
        self.has_exceptions = not all(excludes for _, excludes in self._patterns)

    def excludes(self, path: str) -> bool:
        """Tell whether a path is left out. Its parent directories need not have been asked."""
        paths = [path]
        while path := posixpath.dirname(path):
            paths.append(path)
        return next((excludes for matches, excludes in self._patterns if any(map(matches, paths))), False)

    def _matcher(self, pattern: str) -> Matcher:
        if not pattern:
            raise ValueError("it names nothing")
        return _matcher(_parts(posixpath.normpath(pattern).lstrip("/"), is_git=False))


class TorchxRules(DockerRules):
    """Patterns of a ``.torchxignore``: as Docker's, but ``*`` and ``?`` stand for slashes too."""

    def _matcher(self, pattern: str) -> Matcher:
        return re.compile(fnmatch.translate(pattern.strip("/"))).match
