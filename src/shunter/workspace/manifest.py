"""The list of what a workspace consists of, and its fingerprint.

The fingerprint is the SHA-256 over path, kind, mode and content of every entry. Times and owners do not
count: a fresh clone of the same commit has the same fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from functools import cached_property
from typing import Literal, NamedTuple

Kind = Literal["file", "link", "dir"]

FORMAT = 1


class Entry(NamedTuple):
    """A file, symbolic link or directory.

    Attributes:
        path: where it is in the workspace, parts separated by ``/``; bytes that are not UTF-8 as
            `os.fsdecode` gives them.
        kind: ``file``, ``link`` or ``dir``.
        mode: permission bits, with setuid, setgid and sticky; 0o777 for a link.
        size: of a file, in bytes.
        digest: SHA-256 of a file's content, in hexadecimal.
        target: what a link points to.
        uid, gid: owner and group in an image; they are no part of a workspace, nor of its fingerprint.
    """

    path: str
    kind: Kind
    mode: int
    size: int = 0
    digest: str = ""
    target: str = ""
    uid: int = 0
    gid: int = 0


class Changes(NamedTuple):
    """What differs between two manifests, as sorted paths."""

    added: list[str]
    removed: list[str]
    modified: list[str]


class Manifest:
    """All entries of a workspace, sorted by path.

    Args:
        entries: in any order; no path may be there twice.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries: tuple[Entry, ...] = tuple(sorted(entries))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hexadecimal over path, kind, mode and digest or target of every entry."""
        rows = [f"{e.kind}\0{e.mode:o}\0{e.digest or e.target}\0{e.path}\0" for e in self.entries]
        return hashlib.sha256(os.fsencode("".join(rows))).hexdigest()

    @cached_property
    def by_path(self) -> dict[str, Entry]:
        """The entries by path."""
        return {entry.path: entry for entry in self.entries}

    @cached_property
    def files(self) -> int:
        """How many files there are."""
        return sum(entry.kind == "file" for entry in self.entries)

    @cached_property
    def size(self) -> int:
        """How many bytes all files have together."""
        return sum(entry.size for entry in self.entries)

    def dumps(self) -> bytes:
        """Return it as JSON text."""
        value = {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "entries": [list(e[:6]) for e in self.entries],
        }
        return json.dumps(value, separators=(",", ":")).encode("ascii")

    @classmethod
    def loads(cls, data: bytes) -> Manifest:
        """Return the manifest from the result of `dumps`.

        Raises:
            ValueError: it is something else, or has been damaged.
        """
        value = json.loads(data)
        try:
            if value["format"] != FORMAT:
                raise ValueError(f"the manifest's format is {value['format']!r}")
            manifest = cls(Entry(*row) for row in value["entries"])
            if manifest.fingerprint != value["fingerprint"]:
                raise ValueError("the manifest does not have its fingerprint")
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not a manifest: {error!r}") from error
        return manifest

    @staticmethod
    def compare(old: Manifest, new: Manifest) -> Changes:
        """Return what was added, removed and modified from one to the other."""
        before, after = old.by_path, new.by_path
        return Changes(
            added=[path for path in after if path not in before],
            removed=[path for path in before if path not in after],
            modified=[path for path, entry in after.items() if path in before and before[path] != entry],
        )
