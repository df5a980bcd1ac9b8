"""What code travels with a job: directories of this machine, and where they go."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shunter.errors import UsageError
from shunter.specs.conversion import unquote

#: Names at a workspace's root of what builds its image; the first that is there is used.
DOCKERFILES = ("Dockerfile.shunter", "Dockerfile.torchx")

_EXAMPLE = "A directory, '.', or several with where they go: --workspace app=.,../lib=lib"


@dataclass(frozen=True, repr=False)
class Workspace:
    """Directories that travel with a job.

    Args:
        projects: directory of this machine -> where its content goes, relative to the job's working
            directory; "" or "." is that directory itself.
        implicit: whether it is a default that was not requested, such as the current directory.
        frozen: the code that an earlier job ran with, by its fingerprint or the beginning of one; instead
            of ``projects``.
    """

    projects: Mapping[str, str] = field(default_factory=dict)
    implicit: bool = field(default=False, kw_only=True, compare=False)
    frozen: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        projects = {source: _destination(to, source) for source, to in self.projects.items()}
        object.__setattr__(self, "projects", projects)

    @classmethod
    def from_str(cls, text: str | None) -> Workspace:
        """Read ``DIR``, or ``DIR=SUB,DIR=SUB``, or TorchX's YAML: ``{DIR: SUB, DIR: SUB}``, or
        lines of ``DIR: SUB``, with comments (``#``) between them.

        An empty or blank text is a workspace without directories. If the text is the path of an existing
        directory, a ``=`` in it belongs to the path. ``@FINGERPRINT`` is the code that an earlier job ran
        with. A directory may be a URL: ``file://DIR``, or another one, such as ``memory://``, whose files are
        fetched.

        Raises:
            UsageError: the text cannot be read.
        """
        if text is not None and not isinstance(text, str):
            raise UsageError(f"the workspace {text!r} is not a text", hint=_EXAMPLE)
        lines = (text or "").strip().split("\n")
        text = "\n".join(line for line in lines if line.strip() and not line.startswith("#"))
        if not text:
            return cls()
        if os.path.isdir(text):
            return cls({text: ""})
        if text.startswith("@"):
            return cls(frozen=_fingerprint(text))
        entries = _entries(text)
        if entries is None:
            return cls({_plain_path(text): ""})
        projects: dict[str, str] = {}
        for source, separator, to in entries:
            source = _plain_path(unquote(source.strip()))
            if not source or not separator:
                raise UsageError(f"cannot read {source!r} in the workspace {text!r}", hint=_EXAMPLE)
            if source in projects:
                raise UsageError(f"the workspace {text!r} names {source!r} twice", hint=_EXAMPLE)
            projects[source] = unquote(to.strip())
        return cls(projects)

    @classmethod
    def implied(cls) -> Workspace:
        """Return the current directory, as a default that was not requested: an empty one is not an error."""
        return cls({os.getcwd(): ""} if os.listdir() else {}, implicit=True)

    def is_unmapped_single_project(self) -> bool:
        """Tell whether it is one directory that becomes the working directory itself."""
        return len(self.projects) == 1 and not any(self.projects.values())

    def absolute(self) -> Workspace:
        """Return it with absolute, resolved source directories."""
        projects = {
            source if is_url(source) else os.path.realpath(os.path.expanduser(source)): to
            for source, to in self.projects.items()
        }
        return replace(self, projects=projects)

    def merge_into(self, outdir: str | os.PathLike[str]) -> None:
        """Copy the files of all projects into a directory, each project to its place."""
        for source, to in self.projects.items():
            target = os.path.join(outdir, to)
            if os.path.isdir(source):
                shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
            else:
                os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
                shutil.copy2(source, target)

    def __bool__(self) -> bool:
        return bool(self.projects or self.frozen)

    def __hash__(self) -> int:
        return hash((self.frozen, *sorted(self.projects.items())))

    def __str__(self) -> str:
        if self.frozen:
            return f"@{self.frozen}"
        if self.is_unmapped_single_project():
            return next(iter(self.projects))
        return ",".join(f"{source}={to or '.'}" for source, to in self.projects.items())

    def __repr__(self) -> str:
        return f"Workspace.from_str({str(self)!r})"


def our_workspace(value: Any) -> Workspace:
    """Return a workspace of exactly our class, made from a text, None, or TorchX's class."""
    if type(value) is Workspace:
        return value
    if isinstance(value, Workspace):
        return Workspace(value.projects, implicit=value.implicit, frozen=value.frozen)
    projects = getattr(value, "projects", None)
    return Workspace.from_str(value) if projects is None else Workspace(projects)


def is_url(source: str) -> bool:
    """Tell whether a source is not a directory of this machine, but a URL whose files have to be fetched."""
    return "://" in source


def _plain_path(source: str) -> str:
    """Return the path of a ``file://`` URL; anything else as it is."""
    return (source.removeprefix("file://") or "/") if source.startswith("file://") else source


def _entries(text: str) -> list[tuple[str, str, str]] | None:
    """Split a text into source, separator and destination of each directory; None if it is one path."""
    if text.startswith("{") and text.endswith("}"):
        return [_yaml_entry(part) for part in text[1:-1].split(",")]
    lines = [_yaml_entry(line) for line in text.split("\n")]
    if all(colon for _, colon, _ in lines):
        return lines
    return [part.partition("=") for part in text.split(",")] if "=" in text else None


def _yaml_entry(text: str) -> tuple[str, str, str]:
    """Split ``source: to``; the colon of a URL is not the separator."""
    match = re.fullmatch(r"((?:\w+://)?[^:{]*):(?!//)(.*)", text.strip())
    return (match[1], ":", match[2]) if match else (text, "", "")


def _fingerprint(text: str) -> str:
    digits = text[1:].lower()
    if len(digits) < 8 or len(digits) > 64 or set(digits) - set("0123456789abcdef"):
        raise UsageError(
            f"{text!r} is not the fingerprint of a workspace",
            hint="Write at least 8 of its hexadecimal digits after the @, as `shunter diff` shows them.",
        )
    return digits


def _destination(to: str, source: str) -> str:
    """Return a destination as a relative path without dots; "" for the working directory itself."""
    path = posixpath.normpath(to) if to else "."
    if path.startswith(("/", "..")) or "\0" in path:
        raise UsageError(
            f"{source!r} cannot go to {to!r}: destinations are inside the job's working directory",
            hint=_EXAMPLE,
        )
    return "" if path == "." else path
