"""What an image is built with where a workspace has a Dockerfile of its own."""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.errors import ConfigError, WorkspaceChangedError
from trainyard.regular_files import read_regular_file
from trainyard.workspace.images.dockerfile import DOCKERFILES, parse
from trainyard.workspace.images.layer import PIECE, LayerContent, LayerEntry
from trainyard.workspace.manifest import Entry

if TYPE_CHECKING:
    from trainyard.workspace.snapshot import Snapshot

_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Context:
    """What is sent to a build.

    Attributes:
        dockerfile: path of the Dockerfile in it.
        text: its content.
        entries: everything, sorted.
        content: the same, with what reads it.
    """

    dockerfile: str
    text: str
    content: LayerContent

    @property
    def fingerprint(self) -> str:
        """SHA-256 over all entries."""
        rows = "\n".join(repr(tuple(entry)) for entry in self.content.entries)
        return hashlib.sha256(rows.encode("utf-8", "surrogateescape")).hexdigest()


def find_context(taken: Snapshot, projects: Mapping[str, str]) -> Context | None:
    """Return what a workspace's own Dockerfile is built with; None if it has none.

    The Dockerfile and what it names, file by file, are part of it even where an ignore file leaves them out.

    Args:
        taken: the workspace.
        projects: its directories, and where they go.
    """
    roots = [source for source, to in projects.items() if not to]
    entries = taken.manifest.by_path
    added: dict[str, str] = {}
    for name in DOCKERFILES:
        path = next(
            (os.path.join(root, name) for root in roots if os.path.isfile(os.path.join(root, name))), ""
        )
        if name in entries or path:
            break
    else:
        return None
    if name not in entries:
        added[name] = path
    content = b"".join(taken.read(entries[name])) if name in entries else _whole(path)
    text = content.decode("utf-8", "replace")
    for source in parse(text, {}).sources:
        added |= _named(source, roots, entries)
    skipped = {
        ".dockerignore",
        f"{name}.dockerignore",
    }  # the selection has been made: they would make another
    every = [entry for path, entry in entries.items() if path not in skipped]
    every += [_entry(path, source) for path, source in added.items()]
    by_path = {entry.path: entry for entry in every}

    def read(item: LayerEntry) -> Iterable[bytes]:
        if item.path in added:
            return _same_chunks(added[item.path], item)
        return taken.read(by_path[item.path])

    items = (LayerEntry(e.path, e.kind, e.mode, 0, 0, e.size, e.digest, e.target) for e in every)
    return Context(name, text, LayerContent(tuple(sorted(items)), read))


def _named(source: str, roots: list[str], entries: Mapping[str, Entry]) -> dict[str, str]:
    """Return files that a Dockerfile names and the selection has not: path in the context -> on disk."""
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
            return dict(_below(there, path))
    return {}


def _below(directory: str, path: str) -> Iterator[tuple[str, str]]:
    for folder, _, names in os.walk(directory):
        inside = os.path.relpath(folder, directory)
        for name in names:
            file = os.path.join(folder, name)
            if os.path.isfile(file):
                yield posixpath.normpath(posixpath.join(path, inside, name)), file


def _entry(path: str, source: str) -> Entry:
    hasher, size = hashlib.sha256(), 0
    for chunk in _chunks(source):
        hasher.update(chunk)
        size += len(chunk)
    return Entry(path, "file", os.stat(source).st_mode & 0o7777, size, hasher.hexdigest())


def _whole(path: str) -> bytes:
    try:
        return read_regular_file(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}, which the image is built with: {error.strerror}") from error


def _chunks(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            while chunk := file.read(PIECE):
                yield chunk
    except OSError as error:
        raise ConfigError(f"cannot read {path}, which the image is built with: {error.strerror}") from error


def _same_chunks(path: str, item: LayerEntry) -> Iterator[bytes]:
    """Yield a file's content, if it is the one that was hashed; the last chunk only once that is certain."""
    hasher, left = hashlib.sha256(), item.size
    for chunk in _chunks(path):
        hasher.update(chunk)
        left -= len(chunk)
        if left < 0 or (left == 0 and hasher.hexdigest() != item.digest):
            raise WorkspaceChangedError(path)
        yield chunk
    if left:
        raise WorkspaceChangedError(path)
