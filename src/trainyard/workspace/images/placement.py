"""Where a workspace lies in an image, and which directories its layer has to repeat.

A layer holds an entry for every directory above its files: Docker makes the ones that are missing with
mode 0755 and owner root, over whatever the lower layers say (overlay2, 20.10; containerd copies them
instead). So the working directory and its parents are repeated with the attributes that they have in the
base image, and links among them are followed, since an entry in a link's place would replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from trainyard.errors import ConfigError
from trainyard.workspace.images.layer import LayerEntry

#: Links that are followed before they are taken for a circle; the kernel's own limit.
MOST_LINKS = 40


class Found(NamedTuple):
    """What a base image has at a path. ``target`` is of a link."""

    kind: Literal["file", "link", "dir"]
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    target: str = ""


#: Looks paths (relative to the root) up in the base image; leaves out those that it does not have.
Lookup = Callable[[Sequence[str]], Mapping[str, Found]]


@dataclass(frozen=True)
class Place:
    """A directory of an image. ``path`` has no links in it and is relative to the root."""

    path: str
    directories: tuple[LayerEntry, ...]


def place(directory: str, lookup: Lookup) -> Place:
    """Find out where a directory really is, and what it and its parents look like.

    Args:
        directory: an absolute path in the image.
        lookup: asks the base image.

    Raises:
        ConfigError: something that is no directory is in the way.
    """
    done: list[str] = []
    todo = _parts(directory)
    entries: list[LayerEntry] = []
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
                raise ConfigError(f"the image's directory {directory} is behind a circle of links")
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
        attributes = there or Found("dir")
        entries.append(LayerEntry(path, "dir", attributes.mode, attributes.uid, attributes.gid))
    kept = {entry.path: entry for entry in entries if _above("/".join(done), entry.path)}
    return Place("/".join(done), tuple(kept.values()))


def _above(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}/")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _prefixes(done: Sequence[str], todo: Sequence[str]) -> list[str]:
    """Return the paths that a walk will come by, if it meets no link."""
    paths = []
    here = list(done)
    for part in todo:
        if part == "..":
            here = here[:-1]
            continue
        here.append(part)
        paths.append("/".join(here))
    return paths
