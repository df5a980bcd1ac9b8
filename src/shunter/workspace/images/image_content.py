"""What is put into an image: a job's code and the toolkit, and where in the image they go.

A layer that is written to a registry holds an entry for every directory above its files: Docker makes the
ones that are missing with mode 0755 and owner root, over whatever the lower layers say (overlay2, 20.10;
containerd copies them instead). So the working directory and its parents are repeated with the attributes
that they have in the base image, and links among them are followed: an entry in a link's place would replace
it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import shunter
from shunter.errors import ConfigError
from shunter.specs.workspace import Workspace
from shunter.workspace.images.dockerfile import find_context
from shunter.workspace.images.image_config import (
    LABEL_BASE,
    LABEL_BASE_NAME,
    LABEL_FINGERPRINT,
    LABEL_TOOLKIT,
    LABEL_VERSION,
    working_dir,
)
from shunter.workspace.images.layer import WHITEOUT, LayerContent
from shunter.workspace.manifest import Entry, Manifest
from shunter.workspace.snapshot import snapshot
from shunter.workspace.toolkit_files import TOOLKIT_BASE, TOOLKIT_PATH, toolkit_archive

#: Changed whenever the same files would be laid out in another way.
LAYOUT = 3
#: Links that are followed before they are assumed to be circular; the kernel's own limit.
MOST_LINKS = 40
_TOOLKIT_DIRECTORY, _, _TOOLKIT_NAME = TOOLKIT_PATH.rpartition("/")


class JobCode:
    """A workspace, fixed; the toolkit, if a role needs it; and the workspace's own Dockerfile.

    Args:
        workspace: what travels; an empty one is nothing but the toolkit.
        with_toolkit: whether a role needs the toolkit.

    Raises:
        WorkspaceError: the workspace cannot be read, or has no files.
        ConfigError: the toolkit is needed and missing.
    """

    def __init__(self, workspace: Workspace, *, with_toolkit: bool) -> None:
        self.workspace = workspace
        self.snapshot = snapshot(workspace) if workspace else None
        self.toolkit = toolkit_archive() if with_toolkit else None
        roots = [source for source, to in workspace.projects.items() if not to]
        self.context = find_context(self.snapshot, roots) if self.snapshot else None

    @property
    def manifest(self) -> Manifest | None:
        """The workspace's manifest."""
        return self.snapshot.manifest if self.snapshot else None

    def labels(self, *, with_toolkit: bool) -> dict[str, str]:
        """Return the labels of an image that it is put into, with the toolkit or without."""
        labels = {LABEL_VERSION: shunter.__version__}
        if self.manifest:
            labels[LABEL_FINGERPRINT] = self.manifest.fingerprint
        return {**labels, LABEL_TOOLKIT: self._toolkit_digest} if with_toolkit else labels

    @property
    def _toolkit_digest(self) -> str:
        return hashlib.sha256(self.toolkit).hexdigest() if self.toolkit else ""

    def key(
        self, image: str, *, with_toolkit: bool, platform: str | None = None, environment: str = ""
    ) -> str:
        """Return the tag of the image made from an image, an environment and this code. Contacts nothing."""
        parts = [
            LAYOUT,
            image,
            self.manifest.fingerprint if self.manifest else "",
            self._toolkit_digest if with_toolkit else "",
            self.context.text if self.context else "",
            platform or "",
            *filter(None, [environment]),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]

    def patch(
        self, base: str, name: str, *, with_workspace: bool = True, with_toolkit: bool, platform: str | None
    ) -> Patch:
        """Return what makes an image of another one; the arguments are those of `Patch`."""
        directories = str(self.workspace.absolute()) if self.workspace else ""
        cargo = Cargo(None, lambda entry: (), self.toolkit if with_toolkit else None)
        if self.snapshot is not None and with_workspace:
            cargo = replace(cargo, entries=self.snapshot.manifest.entries, read=self.snapshot.read)
        return Patch(
            base,
            name,
            cargo,
            {**self.labels(with_toolkit=with_toolkit), LABEL_BASE_NAME: base},
            f"{directories} with the toolkit" if with_toolkit else directories,
            platform,
        )


@dataclass(frozen=True)
class Patch:
    """An image that is to be made: another one with code on top.

    Attributes:
        base: the image below.
        name: repository and tag of the new one.
        cargo: what goes on top.
        labels: labels that it gets.
        roots: names the layers that differ little from each other: those of the same directories.
        platform: which of several images of the base; by default the daemon's own, or this machine's.
    """

    base: str
    name: str
    cargo: Cargo
    labels: Mapping[str, str]
    roots: str
    platform: str | None

    @property
    def what(self) -> str:
        """What goes on top."""
        return "the code"

    def compose(self, config: Mapping[str, Any], lookup: Lookup | None = None) -> LayerContent:
        """Lay out what goes on top as one layer.

        Args:
            config: the configuration of the base image.
            lookup: see `Cargo.compose`.

        Raises:
            ConfigError: a name cannot be in a layer, or something is in the way in the base image.
        """
        return self.cargo.compose(working_dir(config), lookup)

    def is_made(self, labels: Mapping[str, str] | None, base_id: str) -> bool:
        """Tell from an image's labels whether it is this one, over the base with this id."""
        wanted = {**self.labels, LABEL_BASE: base_id}
        return all((labels or {}).get(name) == wanted.get(name) for name in (LABEL_BASE, LABEL_FINGERPRINT))

    def is_in(self, labels: Mapping[str, str] | None) -> bool:
        """Tell from the base's labels whether it has everything: only the toolkit is wanted, and there."""
        toolkit = self.labels.get(LABEL_TOOLKIT)
        return self.cargo.entries is None and bool(toolkit) and (labels or {}).get(LABEL_TOOLKIT) == toolkit


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

    def compose(self, working_dir: str, lookup: Lookup | None = None) -> LayerContent:
        """Lay everything out as one layer.

        Args:
            working_dir: where the workspace goes.
            lookup: asks the base image what it has, so that the layer can repeat the directories above its
                files. None for a layer that is unpacked over the image, which keeps them.

        Raises:
            ConfigError: a name cannot be in a layer, or something is in the way in the base image.
        """
        entries: dict[str, Entry] = {}
        sources: dict[str, Entry] = {}
        if self.entries is not None:
            where = locate(working_dir, lookup)
            entries |= where.by_path
            for entry in self.entries:
                _check_name(entry.path)
                path = f"{where.path}/{entry.path}"
                entries[path], sources[path] = entry._replace(path=path), entry
        toolkit_path = ""
        if self.toolkit is not None:
            where = locate(_TOOLKIT_DIRECTORY, lookup)
            toolkit_path = f"{where.path}/{_TOOLKIT_NAME}"
            digest = hashlib.sha256(self.toolkit).hexdigest()
            entries = where.by_path | entries
            entries[toolkit_path] = Entry(toolkit_path, "file", 0o755, size=len(self.toolkit), digest=digest)
            base = locate(TOOLKIT_BASE, lookup)
            # like /tmp: the image's user need not be root
            entries = base.by_path | entries | {base.path: Entry(base.path, "dir", 0o1777)}
        if lookup is not None:
            _add_parents(entries)

        def read(entry: Entry) -> Iterable[bytes]:
            if entry.path == toolkit_path:
                return (self.toolkit or b"",)
            return self.read(sources[entry.path])

        return LayerContent(tuple(entries[path] for path in sorted(entries)), read)


def _check_name(path: str) -> None:
    if path.rpartition("/")[2].startswith(WHITEOUT):
        raise ConfigError(
            f"the workspace has a file {path!r}, whose name marks a removed file in an image",
            hint="Rename it, or add it to .shunterignore.",
        )


def _add_parents(entries: dict[str, Entry]) -> None:
    """Give every entry its parents: Docker would make missing ones with other attributes."""
    for path in list(entries):
        parent = path.rpartition("/")[0]
        while parent and parent not in entries:
            entries[parent] = Entry(parent, "dir", 0o755)
            parent = parent.rpartition("/")[0]


# ---- where a directory really is


#: Looks paths (relative to the root) up in the base image; leaves out those that it does not have.
Lookup = Callable[[Sequence[str]], Mapping[str, Entry]]


class ImageDirectory(NamedTuple):
    """A directory of an image, and the entries of it and those above it.

    ``path`` has no links in it and is relative to the root.
    """

    path: str
    by_path: dict[str, Entry]


def locate(directory: str, lookup: Lookup | None) -> ImageDirectory:
    """Find out where a directory, given by its absolute path, really is in the base image.

    Returns it with its own attributes and those of its parents; without a ``lookup``, nothing but its path.

    Raises:
        ConfigError: something else than a directory is in the way.
    """
    done: list[str] = []
    todo = _parts(directory)
    if lookup is None:
        return ImageDirectory(os.path.normpath("/".join(todo)), {})
    entries: dict[str, Entry] = {}
    found = dict(lookup(_prefixes([], todo)))
    links = 0
    while todo:
        part = todo.pop(0)
        if part == "..":
            done = done[:-1]
            continue
        path = "/".join([*done, part])
        there = found.get(path)
        if there is not None and there.kind == "link":
            links += 1
            if links > MOST_LINKS:
                raise ConfigError(f"the image's directory {directory} is behind a loop of symbolic links")
            done = [] if there.target.startswith("/") else done
            todo = _parts(there.target) + todo
            found.update(lookup(_prefixes(done, todo)))
            continue
        if there is not None and there.kind == "file":
            raise ConfigError(
                f"code cannot go to {directory} of the image: /{path} is a file there",
                hint="Choose another working directory in the image (WORKDIR).",
            )
        done.append(part)
        entries[path] = there or Entry(path, "dir", 0o755)
    end = "/".join(done)
    return ImageDirectory(
        end, {path: entry for path, entry in entries.items() if f"{end}/".startswith(f"{path}/")}
    )


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _prefixes(done: Sequence[str], todo: Sequence[str]) -> list[str]:
    """Return the paths that a walk visits if it meets no link."""
    paths = []
    here = list(done)
    for part in todo:
        if part == "..":
            here = here[:-1]
        else:
            here.append(part)
            paths.append("/".join(here))
    return paths
