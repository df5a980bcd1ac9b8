"""A workspace's own Dockerfile: what it is made from, what it needs, and the context it is built with.

Only what has to be known before a build is read here. Docker builds (`docker_build`), and finds errors.
https://docs.docker.com/reference/dockerfile/
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shunter.errors import ConfigError, WorkspaceChangedError
from shunter.paths import read_regular_file
from shunter.specs.workspace import DOCKERFILES
from shunter.workspace.images.layer import PIECE, LayerContent, LayerEntry
from shunter.workspace.manifest import Entry
from shunter.workspace.snapshot import Snapshot

#: The build's arguments: the role's image, and the workspace.
IMAGE_ARG, WORKSPACE_ARG = "IMAGE", "WORKSPACE"

_DIRECTIVE = re.compile(r"^#\s*(?P<name>[a-z]+)\s*=\s*(?P<value>\S+)\s*$", re.I)
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::(?P<how>[-+])(?P<word>[^}]*))?\}|(?P<plain>\w+))")
_HEREDOC = re.compile(r"<<-?\s*[\"']?(?P<word>\w+)[\"']?")
_FLAG = re.compile(r"^--(?P<name>[a-z-]+)(?:=(?P<value>.*))?$")
_WILDCARD = re.compile(r"[*?\[]")


def bases_of(text: str, build_args: Mapping[str, str]) -> list[str]:
    """Return the images that a Dockerfile is built from, in order, without its own stages and ``scratch``.

    One whose name depends on what is not known before the build is left out too.

    Args:
        text: the Dockerfile.
        build_args: values that are given of its ``ARG`` instructions.
    """
    variables: dict[str, str] = {}
    stages: set[str] = set()
    bases: dict[str, None] = {}
    in_stage = False
    for word, flags, words in _instructions(text):
        if word == "ARG" and not in_stage:
            for name, given, default in (part.partition("=") for part in words):
                if name in build_args or given:
                    variables[name] = build_args.get(name, _substitute(default, variables) or "")
        elif word == "FROM" and words:
            in_stage = True
            base = _substitute(words[0], variables)
            if base and base != "scratch" and base.lower() not in stages:
                bases[base] = None
            if len(words) == 3 and words[1].upper() == "AS":
                stages.add(words[2].lower())
        elif word == "COPY" and flags.get("from", "0").lower() not in stages | {"0"}:
            bases[flags["from"]] = None
    return list(bases)


def sources_of(text: str) -> list[str]:
    """Return the paths and patterns that a Dockerfile copies from its context."""
    return [
        item
        for word, flags, words in _instructions(text)
        if word in ("COPY", "ADD") and not flags.get("from")
        for item in words[:-1]
        if "://" not in item and "<<" not in item
    ]


def _directives(text: str) -> dict[str, str]:
    found = {}
    for line in text.lstrip("\ufeff").splitlines():
        match = _DIRECTIVE.match(line)
        if match is None:
            break
        found[match["name"].lower()] = match["value"]
    return found


def _instructions(text: str) -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Yield instructions, their flags and words: lines joined, comments and here-documents left out."""
    escape = _directives(text).get("escape", "\\")
    lines = iter(text.lstrip("\ufeff").splitlines())
    pending = ""
    for line in lines:
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        if bare.endswith(escape):
            pending += bare[:-1] + " "
            continue
        word, _, rest = (pending + bare).partition(" ")
        pending = ""
        word = word.upper()
        for match in _HEREDOC.finditer(rest) if word in ("RUN", "COPY", "ADD") else ():
            for skipped in lines:
                if skipped.lstrip("\t") == match["word"]:
                    break
        yield word, *_words(rest.strip())
    if pending:
        word, _, rest = pending.partition(" ")
        yield word.upper(), *_words(rest.strip())


def _words(rest: str) -> tuple[dict[str, str], list[str]]:
    """Split what follows an instruction into flags and words; reads the JSON form too."""
    flags: dict[str, str] = {}
    while match := _FLAG.match(rest.partition(" ")[0]):
        flags[match["name"]] = match["value"] or ""
        rest = rest.partition(" ")[2].strip()
    if rest.startswith("["):
        return flags, re.findall(r'"((?:[^"\\]|\\.)*)"', rest)
    try:
        return flags, shlex.split(rest)
    except ValueError:  # an apostrophe in a RUN line
        return flags, rest.split()


def _substitute(text: str, variables: Mapping[str, str]) -> str | None:
    """Replace variables by their values; None where one has no value."""
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        name = match["braced"] or match["plain"]
        known = variables.get(name, "")
        if match["how"] == "-":
            return known or match["word"]
        if match["how"] == "+":
            return match["word"] if known else ""
        missing = missing or name not in variables
        return known

    replaced = _VARIABLE.sub(value, text)
    return None if missing else replaced


# ---- the context


@dataclass(frozen=True)
class BuildContext:
    """What is sent to a build.

    Attributes:
        dockerfile: path of the Dockerfile in it.
        text: the Dockerfile's content.
        content: all entries, and the function that reads them.
    """

    dockerfile: str
    text: str
    content: LayerContent

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all entries."""
        rows = "\n".join(repr(tuple(entry)) for entry in self.content.entries)
        return hashlib.sha256(rows.encode("utf-8", "surrogateescape")).hexdigest()


def find_context(taken: Snapshot, projects: Mapping[str, str]) -> BuildContext | None:
    """Return what a workspace's own Dockerfile is built with, or None.

    The Dockerfile and what it names, file by file, are part of it even where an ignore file leaves them out.

    The projects are the workspace's directories, and where they go.
    """
    roots = [source for source, to in projects.items() if not to]
    entries = taken.manifest.by_path
    added: dict[str, str] = {}
    for name in DOCKERFILES:
        path = next((path for root in roots if os.path.isfile(path := os.path.join(root, name))), "")
        if name in entries or path:
            break
    else:
        return None
    if name in entries:
        raw = b"".join(taken.read(entries[name]))
    else:
        added[name] = path
        try:
            raw = read_regular_file(path)
        except OSError as error:
            raise _unreadable(path, error) from error
    text = raw.decode("utf-8", "replace")
    for source in sources_of(text):
        added |= _named_files(source, roots, entries)
    # the files have been selected already; these ignore files would filter them again
    skipped = {".dockerignore", f"{name}.dockerignore"}
    every = [entry for path, entry in entries.items() if path not in skipped]
    every += [_entry(path, source) for path, source in added.items()]
    by_path = {entry.path: entry for entry in every}

    def read(item: LayerEntry) -> Iterable[bytes]:
        if item.path in added:
            return _same_chunks(added[item.path], item)
        return taken.read(by_path[item.path])

    items = (LayerEntry(e.path, e.kind, e.mode, 0, 0, e.size, e.digest, e.target) for e in every)
    return BuildContext(name, text, LayerContent(tuple(sorted(items)), read))


def _named_files(source: str, roots: list[str], entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return files that a Dockerfile names and the workspace lacks: path in the context -> on disk."""
    path = posixpath.normpath(source.lstrip("/") or ".")
    if path in (".", "..") or path.startswith("../") or _WILDCARD.search(path):
        return {}
    if "$" in path or path in entries or any(known.startswith(f"{path}/") for known in entries):
        return {}
    for root in roots:
        there = os.path.join(root, path)
        if os.path.isfile(there):
            return {path: there}
        if os.path.isdir(there):
            return {
                posixpath.normpath(posixpath.join(path, os.path.relpath(folder, there), name)): file
                for folder, _, names in os.walk(there)
                for name in names
                if os.path.isfile(file := os.path.join(folder, name))
            }
    return {}


def _entry(path: str, source: str) -> Entry:
    hasher, size = hashlib.sha256(), 0
    for chunk in _chunks(source):
        hasher.update(chunk)
        size += len(chunk)
    return Entry(path, "file", os.stat(source).st_mode & 0o7777, size, hasher.hexdigest())


def _chunks(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            while chunk := file.read(PIECE):
                yield chunk
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read {path}, which the image is built with: {error.strerror}")


def _same_chunks(path: str, item: LayerEntry) -> Iterator[bytes]:
    """Yield a file's content if it is what was hashed; the last chunk only once that is certain."""
    hasher, left = hashlib.sha256(), item.size
    for chunk in _chunks(path):
        hasher.update(chunk)
        left -= len(chunk)
        if left < 0 or (left == 0 and hasher.hexdigest() != item.digest):
            raise WorkspaceChangedError(path)
        yield chunk
    if left:
        raise WorkspaceChangedError(path)
