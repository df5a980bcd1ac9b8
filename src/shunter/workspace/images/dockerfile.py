"""A workspace's own Dockerfile, and the context it is built with. Docker reads it, and finds its errors."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from shunter.docker.image_reference import IMAGE_ID, Reference
from shunter.errors import ConfigError
from shunter.paths import read_regular_file
from shunter.specs.workspace import DOCKERFILES
from shunter.workspace.images.layer import LayerContent
from shunter.workspace.manifest import Entry
from shunter.workspace.snapshot import Snapshot

#: The build's arguments: the role's image, and the workspace.
IMAGE_ARG, WORKSPACE_ARG = "IMAGE", "WORKSPACE"
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)", re.IGNORECASE | re.MULTILINE)


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

    def registries(self, image: str) -> set[str]:
        """Return hosts that the build may pull from: of the role's image, and of what FROM names."""
        hosts = set()
        for name in [image, *_FROM.findall(self.text)]:
            try:
                hosts |= set() if IMAGE_ID.fullmatch(name) else {Reference.parse(name).registry}
            except ConfigError:  # a variable
                continue
        return hosts


def find_context(taken: Snapshot, projects: Iterable[str]) -> BuildContext | None:
    """Return what a workspace's own Dockerfile is built with, or None.

    The Dockerfile is part of it even where an ignore file leaves it out. The projects are the directories
    that are at the workspace's root.
    """
    entries = taken.manifest.by_path
    for name in DOCKERFILES:
        path = next((path for root in projects if os.path.isfile(path := os.path.join(root, name))), "")
        if name in entries or path:
            break
    else:
        return None
    raw = b"".join(taken.read(entries[name])) if name in entries else _read(path)
    # the files have been selected already; these ignore files would filter them again
    skipped = {name, ".dockerignore", f"{name}.dockerignore"}
    items = [Entry(name, "file", 0o644, len(raw), hashlib.sha256(raw).hexdigest())]
    items += [entry for entry in taken.manifest.entries if entry.path not in skipped]

    def read(entry: Entry) -> Iterable[bytes]:
        return (raw,) if entry.path == name else taken.read(entry)

    return BuildContext(name, raw.decode("utf-8", "replace"), LayerContent(tuple(sorted(items)), read))


def _read(path: str) -> bytes:
    try:
        return read_regular_file(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}, by which the image is built: {error.strerror}") from error
