"""Removing from the store what nobody needs any more."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainyard.workspace.code_store import Store


def unneeded(store: Store, keep: set[str], older_than: float) -> list[str]:
    """Return fingerprints of manifests that are not to be kept and were not used for so many seconds."""
    now = time.time()
    return [
        fingerprint
        for fingerprint in store.fingerprints()
        if fingerprint not in keep and _age(_manifest(store, fingerprint), now) >= older_than
    ]


def collect(store: Store, keep: set[str], older_than: float, spared: float) -> int:
    """Remove unneeded manifests, content that no manifest mentions, and leftovers. See `Store.collect`.

    Raises:
        StateStoreError: something cannot be removed.
    """
    freed = 0
    for fingerprint in unneeded(store, keep, max(older_than, spared)):
        freed += _remove(_manifest(store, fingerprint))
    files: set[str] = set()
    digests: set[str] = set()
    for fingerprint in store.fingerprints():
        manifest = store.manifest(fingerprint)
        for entry in manifest.entries if manifest is not None else ():
            if entry.kind == "file":
                files.add(os.path.basename(store.blob_path(entry)))
                digests.add(entry.digest)
    freed += _sweep(os.path.join(store.root, "blobs"), files, spared)
    freed += _sweep(os.path.join(store.root, "sources"), digests, spared)
    freed += _sweep(os.path.join(store.root, "manifests"), None, spared)
    _sweep_views(os.path.join(store.root, "views"), spared)
    freed += _sweep_index(os.path.join(store.root, "index"), max(older_than, spared))
    return freed


def _sweep(root: str, wanted: set[str] | None, spared: float) -> int:
    """Remove files that are not wanted (None: those that are complete), if they are not too young."""
    freed, now = 0, time.time()
    for directory, _, names in os.walk(root):
        for name in names:
            needed = not name.startswith(".") if wanted is None else name in wanted
            path = os.path.join(directory, name)
            if not needed and _age(path, now, by_change=True) >= spared:
                freed += _remove(path)
    return freed


def _sweep_views(root: str, spared: float) -> None:
    """Remove working directories whose making was interrupted."""
    from trainyard.workspace.code_store import remove_tree, store_error

    now = time.time()
    for name in os.listdir(root) if os.path.isdir(root) else ():
        path = os.path.join(root, name)
        if name.startswith(".") and _age(path, now, by_change=True) >= spared:
            try:
                remove_tree(path)
            except OSError as error:
                raise store_error("remove", path, error) from error


def _sweep_index(root: str, older_than: float) -> int:
    """Remove the digests of projects that nothing was submitted from for long."""
    now = time.time()
    return sum(_remove(path) for path in _files(root) if _age(path, now) >= older_than)


def _files(root: str) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        for name in names:
            yield os.path.join(directory, name)


def _age(path: str, now: float, *, by_change: bool = False) -> float:
    """Return for how many seconds a file has not been touched; blobs have only their change time."""
    try:
        info = os.lstat(path)
    except OSError:
        return -1.0
    return now - (info.st_ctime if by_change else info.st_mtime)


def _remove(path: str) -> int:
    from trainyard.workspace.code_store import store_error

    try:
        info = os.lstat(path)
        os.unlink(path)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise store_error("remove", path, error) from error
    # what is still linked from a working directory stays on the disk
    return info.st_blocks * 512 if info.st_nlink == 1 and stat.S_ISREG(info.st_mode) else 0


def _manifest(store: Store, fingerprint: str) -> str:
    return os.path.join(store.root, "manifests", f"{fingerprint}.json.z")
