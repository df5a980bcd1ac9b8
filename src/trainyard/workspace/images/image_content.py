"""What goes into an image: the files of a workspace and the toolkit, each at its place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainyard.errors import ConfigError
from trainyard.workspace.images.image_config import LABEL_TOOLKIT
from trainyard.workspace.images.layer import WHITEOUT, LayerContent, LayerEntry
from trainyard.workspace.images.placement import Place, place
from trainyard.workspace.toolkit_files import TOOLKIT_BASE, TOOLKIT_PATH

if TYPE_CHECKING:
    from trainyard.workspace.images.placement import Lookup
    from trainyard.workspace.manifest import Entry

_TOOLKIT_DIRECTORY, _, _TOOLKIT_NAME = TOOLKIT_PATH.rpartition("/")


@dataclass(frozen=True)
class Cargo:
    """What has to get into an image.

    Attributes:
        entries: those of the workspace's manifest; None if there is no workspace, so that the image's
            working directory stays as it is.
        read: gives a file's content, exactly as the manifest has it.
        toolkit: the toolkit's archive, or None.
    """

    entries: Sequence[Entry] | None
    read: Callable[[Entry], Iterable[bytes]] = field(compare=False, repr=False)
    toolkit: bytes | None = field(default=None, repr=False)

    def is_in(self, below: Mapping[str, str] | None, labels: Mapping[str, str]) -> bool:
        """Tell whether an image has it all: it is nothing but the toolkit, which a job that is repeated has.

        Args:
            below: the image's labels.
            labels: those that it would get.
        """
        wanted = labels.get(LABEL_TOOLKIT)
        return self.entries is None and bool(wanted) and (below or {}).get(LABEL_TOOLKIT) == wanted

    def compose(self, working_dir: str, lookup: Lookup) -> LayerContent:
        """Lay everything out as one layer.

        Args:
            working_dir: where the workspace goes.
            lookup: asks the base image what it has.

        Raises:
            ConfigError: a name cannot be in a layer, or something is in the way in the base image.
        """
        entries: dict[str, LayerEntry] = {}
        sources: dict[str, Entry] = {}
        if self.entries is not None:
            where = place(working_dir, lookup)
            entries |= _directories(where)
            for entry in self.entries:
                placed = _placed(entry, where.path)
                entries[placed.path], sources[placed.path] = placed, entry
        toolkit_path = ""
        if self.toolkit is not None:
            where = place(_TOOLKIT_DIRECTORY, lookup)
            toolkit_path = f"{where.path}/{_TOOLKIT_NAME}"
            digest = hashlib.sha256(self.toolkit).hexdigest()
            entries = _directories(where) | entries
            entries[toolkit_path] = LayerEntry(
                toolkit_path, "file", 0o755, size=len(self.toolkit), digest=digest
            )
            base = place(TOOLKIT_BASE, lookup)
            # Like /tmp: the image's user need not be root
            entries = _directories(base) | entries | {base.path: LayerEntry(base.path, "dir", 0o1777)}
        _add_parents(entries)

        def read(entry: LayerEntry) -> Iterable[bytes]:
            if entry.path == toolkit_path:
                return (self.toolkit or b"",)
            return self.read(sources[entry.path])

        return LayerContent(tuple(entries[path] for path in sorted(entries)), read)


def no_content(entry: Entry) -> Iterator[bytes]:
    """Stand in for the reader of a cargo that has no workspace."""
    raise AssertionError(entry)


def _directories(where: Place) -> dict[str, LayerEntry]:
    return {entry.path: entry for entry in where.directories}


def _placed(entry: Entry, directory: str) -> LayerEntry:
    path = f"{directory}/{entry.path}"
    if path.rpartition("/")[2].startswith(WHITEOUT):
        raise ConfigError(
            f"the workspace has a file {entry.path!r}, whose name means in an image that a file is removed",
            hint="Rename it, or add it to .trainyardignore.",
        )
    if entry.kind == "file":
        return LayerEntry(path, "file", entry.mode, size=entry.size, digest=entry.digest)
    if entry.kind == "link":
        return LayerEntry(path, "link", 0o777, target=entry.target)
    return LayerEntry(path, "dir", entry.mode)


def _add_parents(entries: dict[str, LayerEntry]) -> None:
    """Give every entry its parents: Docker would make those that are missing with attributes of its own."""
    for path in list(entries):
        parent = path.rpartition("/")[0]
        while parent and parent not in entries:
            entries[parent] = LayerEntry(parent, "dir")
            parent = parent.rpartition("/")[0]
