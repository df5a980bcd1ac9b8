"""Remembers what was shipped from this machine, so that little has to be shipped the next time.

Small JSON files in the state directory. They only save work: if one is missing, damaged or out of date, a
whole layer is made, but never a wrong image: what they name is addressed by content, and daemon and registry
refuse it where it is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shunter.errors import StateStoreError
from shunter.image_registry.push import LayerFile
from shunter.paths import make_private_dir, state_dir
from shunter.workspace.manifest import Entry

#: Changed whenever older files would be misread.
FORMAT = 4


@dataclass(frozen=True)
class Anchor:
    """The last layer that was shipped whole.

    Attributes:
        entries: what is in it.
        image: the id of the daemon's image that ends with it; "" if it is in a registry.
        layer: what it is in a registry; its file has gone.
    """

    entries: tuple[Entry, ...]
    image: str = ""
    layer: LayerFile | None = None


class ImageCache:
    """What is remembered, by key, in a directory; by default one in the state directory.

    Any number of processes may use it at once.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory or os.path.join(state_dir(), "images")

    def recall(self, kind: str, *key: object) -> Any:
        """Return the JSON value that was remembered under a key, or None."""
        try:
            with open(self._path(kind, key), encoding="utf-8", errors="surrogateescape") as file:
                document = json.load(file)
            return document["value"] if document["format"] == FORMAT else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remembered_at(self, kind: str, *key: object) -> float:
        """Return when the value of a key was last remembered, in seconds since the epoch; 0 if none is."""
        try:
            return os.stat(self._path(kind, key)).st_mtime
        except OSError:
            return 0.0

    def remember(self, value: Any, kind: str, *key: object) -> None:
        """Keep a JSON value. Failing to (a full disk) costs time the next time, and nothing else."""
        path = self._path(kind, key)
        document = json.dumps({"format": FORMAT, "value": value}, separators=(",", ":"))
        with contextlib.suppress(OSError, StateStoreError):
            make_private_dir(self._directory)
            handle, temporary = tempfile.mkstemp(dir=self._directory, prefix=".new-")
            try:
                with open(handle, "w", encoding="utf-8") as file:
                    file.write(document)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise

    def anchor(self, *key: object) -> Anchor | None:
        """Return the anchor of a key, or None."""
        value = self.recall("anchor", *key)
        try:
            entries = tuple(Entry(*fields) for fields in value["entries"])
            return Anchor(entries, value["image"], value["layer"] and LayerFile(**value["layer"]))
        except (TypeError, KeyError):
            return None

    def set_anchor(self, anchor: Anchor, *key: object) -> None:
        """Make a layer that was shipped whole the one that the next layers are compared with."""
        entries = [list(entry) for entry in anchor.entries]
        layer = asdict(anchor.layer) if anchor.layer else None
        value = {"entries": entries, "image": anchor.image, "layer": layer}
        self.remember(value, "anchor", *key)

    @contextlib.contextmanager
    def lock(self, *key: object) -> Iterator[None]:
        """Let one process at a time make what has a key; without a lock where there can be none."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, StateStoreError):
                make_private_dir(self._directory)
                file = stack.enter_context(open(self._path("lock", key), "a", encoding="utf-8"))
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _path(self, kind: str, key: Sequence[object]) -> str:
        text = json.dumps([str(part) for part in key])
        name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return os.path.join(self._directory, f"{kind}-{name}.json")
