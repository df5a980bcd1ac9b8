"""A cache of S3 objects on this machine, shared by all jobs.

An entry is named by the object's address, ETag and size: an object that is written again is another entry.
Entries are never written to. If root writes to one in a job that is shown it, the modification time no longer
matches the object's, and the object is fetched again.

::

    STATE/sagemaker-data/
        3f/3fa4...            the content of an object; read-only
        3f/3fa4....partial    one that is being fetched, locked by the process that fetches it
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from shunter._toolkit import store
from shunter.paths import make_private_dir, state_dir
from shunter.system.locks import is_locked

ATTEMPTS = 3
LOCK_PAUSE = 0.05
#: Fraction of a disk that entries leave free: if less is free, objects go straight to their destination.
SPARED = 0.05
_PARTIAL = ".partial"


def cache_dir() -> str:
    """Return the directory of the entries."""
    return os.path.join(state_dir(), "sagemaker-data")


class Cache:
    """The entries, as a job uses them; they come from its store."""

    def __init__(self, data_store: store.Store) -> None:
        self._store = data_store
        self._root = cache_dir()

    def copy(self, item: store.Item, path: str) -> None:
        """Give an object as a copy that may be changed.

        Raises:
            store.StoreError: it cannot be fetched.
            Cancelled: the job is to end.
        """
        self._give(item, path, shared=False)

    def link(self, item: store.Item, path: str) -> None:
        """Give an object as a file that is only read: the entry itself where both are on one file system.

        Raises:
            store.StoreError: it cannot be fetched.
            Cancelled: the job is to end.
        """
        self._give(item, path, shared=True)

    def _give(self, item: store.Item, path: str, *, shared: bool) -> None:
        entry = self._path(item)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            for _ in range(ATTEMPTS):
                if not _is_sound(entry, item):
                    if not self._has_room(item):
                        self._store.download(item, path)
                        return
                    self._fetch(item, entry)
                with contextlib.suppress(FileNotFoundError):  # it was collected just now
                    _put(entry, path, shared=shared)
                    return
        except OSError as error:
            raise store.StoreError(f"cannot keep {item.place.uri} in {self._root}: {error}") from error
        raise store.StoreError(f"{item.place.uri} is removed from {self._root} again and again")

    def _path(self, item: store.Item) -> str:
        key = "\0".join((self._store.endpoint, item.place.uri, item.tag, str(item.size)))
        name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        return os.path.join(self._root, name[:2], name)

    def _has_room(self, item: store.Item) -> bool:
        """Tell whether the disk has room for an entry and a copy of it."""
        make_private_dir(self._root)
        disk = os.statvfs(self._root)
        return disk.f_bavail * disk.f_frsize - 2 * item.size >= SPARED * disk.f_blocks * disk.f_frsize

    def _fetch(self, item: store.Item, entry: str) -> None:
        """Fetch an entry, unless another process has done so meanwhile."""
        os.makedirs(os.path.dirname(entry), mode=0o700, exist_ok=True)
        partial = entry + _PARTIAL
        with self._locked(partial) as descriptor:
            try:
                if _is_sound(entry, item):
                    os.unlink(partial)
                    return
                os.ftruncate(descriptor, 0)
                with open(descriptor, "wb", closefd=False) as file:
                    self._store.write(item, file)
                os.fchmod(descriptor, 0o444)
                os.utime(descriptor, ns=(time.time_ns(), _time_of(item)))
                os.fsync(descriptor)  # after a power cut, the file must not have its size without its content
                os.replace(partial, entry)
            except BaseException:
                os.unlink(partial)
                raise

    @contextlib.contextmanager
    def _locked(self, path: str) -> Iterator[int]:
        """Open and lock a file, once no other process has it locked and it still has this name."""
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._lock(descriptor)
                if _is_at(descriptor, path):  # else the other process has finished it, or given up
                    yield descriptor
                    return
            finally:
                os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        while True:
            self._store.raise_if_cancelled()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._store.cancelled.wait(LOCK_PAUSE)
            else:
                return


@dataclass(frozen=True)
class CacheEntry:
    """An entry, or one that was never finished.

    Attributes:
        path: of its file.
        size: in bytes.
        age: seconds since it was used last.
    """

    path: str
    size: int
    age: float


def entries() -> Iterator[CacheEntry]:
    """Yield all entries, but those that are being fetched."""
    now = time.time()
    for where, _, names in os.walk(cache_dir()):
        for name in names:
            path = os.path.join(where, name)
            try:
                facts = os.stat(path)
            except FileNotFoundError:
                continue
            if not name.endswith(_PARTIAL):
                yield CacheEntry(path, facts.st_size, now - facts.st_atime)
            elif not is_locked(path):
                yield CacheEntry(path, facts.st_size, now - facts.st_mtime)


def discard(path: str) -> int:
    """Remove an entry; returns how many bytes of the disk that frees, where no job shows it."""
    try:
        facts = os.stat(path)
        os.unlink(path)
    except FileNotFoundError:
        return 0
    return facts.st_blocks * 512 if facts.st_nlink == 1 else 0


def _is_sound(entry: str, item: store.Item) -> bool:
    """Tell whether there is an unmodified entry, and record that it has been used."""
    try:
        facts = os.stat(entry)
        if facts.st_size != item.size or facts.st_mtime_ns != _time_of(item):
            return False
        os.utime(entry, ns=(time.time_ns(), facts.st_mtime_ns))
    except FileNotFoundError:
        return False
    return True


def _time_of(item: store.Item) -> int:
    return item.modified * 10**9


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _put(entry: str, path: str, *, shared: bool) -> None:
    if shared:
        try:
            os.link(entry, path)
        except FileExistsError:  # named twice
            return
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or too many links
            pass
        else:
            return
    store.copy_content(entry, path)
