"""The difference of two layers as a third, to lie on the first.

Three layers are in play: the *base* image, the *anchor* (the last layer that was shipped whole), and the
*delta* on top. The content of base + anchor + delta must be that of base + the new layer. A removed file is
hidden by a whiteout, which hides the base's file of that path too, where there is one; then a delta will
not do. Which paths are in doubt is told, and asked of the base by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainyard.workspace.images.layer import LayerEntry

#: A delta of more than this part of the whole is not worth a second layer.
LARGEST_PART = 0.25


class Delta(NamedTuple):
    """Entries of the delta, sorted; and the paths that the base image must not have for it to hold."""

    entries: tuple[LayerEntry, ...]
    doubtful: tuple[str, ...]


def difference(anchor: Sequence[LayerEntry], new: Sequence[LayerEntry]) -> Delta:
    """Return what has to lie on ``anchor`` to make it ``new``.

    Both hold an entry for each directory above their files. The delta does so too: see `placement`.
    """
    old = {entry.path: entry for entry in anchor}
    now = {entry.path: entry for entry in new}
    chosen = {path: entry for path, entry in now.items() if old.get(path) != entry}
    # a directory in a file's place: the file hid what the base may have there, the directory does not
    doubtful = [
        path
        for path, entry in chosen.items()
        if entry.kind == "dir" and path in old and old[path].kind != "dir"
    ]
    for path in old.keys() - now.keys():
        parent = path.rpartition("/")[0]
        if parent and (parent not in now or now[parent].kind != "dir"):
            continue  # goes with its parent, or is hidden by what took the parent's place
        chosen[path] = LayerEntry(path, "gone", 0)
        doubtful.append(path)
    for path in list(chosen):
        for above in _parents(path):
            chosen.setdefault(above, now[above])
    return Delta(tuple(sorted(chosen.values(), key=lambda entry: entry.path)), tuple(sorted(doubtful)))


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]
