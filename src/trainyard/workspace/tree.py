"""Building a directory from stored content."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from trainyard import system
from trainyard.errors import StateStoreError
from trainyard.workspace.manifest import Entry, Manifest

if TYPE_CHECKING:
    from trainyard.workspace.code_store import Store

#: Smaller files are copied: a link costs as much, and keeps nobody from writing into it.
SMALLEST_LINK = 64 * 1024
_NO_CLONE = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY}
)
#: Modification time of stored and of shared files: 2001-09-09, 01:46:40 UTC.
BLOB_TIME_NS = 1_000_000_000 * 1_000_000_000
#: Zeros of this length, on its boundaries, become holes.
_HOLE = 64 * 1024
_ZEROS = bytes(_HOLE)
_NO_LINK = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.EACCES})


def build(store: Store, manifest: Manifest, directory: str, *, private: bool) -> None:
    """Make a directory with the content of a workspace; see `Store.materialize`.

    Raises:
        StateStoreError: it could not be made; nothing of it is left.
    """
    from trainyard.workspace.code_store import beside, remove_tree, store_error

    partial = beside(directory)
    if os.path.lexists(directory):
        raise StateStoreError(f"the directory {directory} exists already", hint="Remove it, and try again.")
    try:
        os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
        os.mkdir(partial, 0o700)
        _Builder(store, partial, private=private).run(manifest)
        os.rename(partial, directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            remove_tree(partial)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise StateStoreError(f"the directory {directory} exists already") from error
        raise store_error("make the directory", directory, error) from error
    except BaseException:
        with contextlib.suppress(OSError):
            remove_tree(partial)
        raise


class _Builder:
    def __init__(self, store: Store, root: str, *, private: bool) -> None:
        self._store = store
        self._root = root
        self._private = private
        self._clones = True

    def run(self, manifest: Manifest) -> None:
        directories = []
        for entry in manifest.entries:  # sorted, so that a directory comes before what is in it
            path = f"{self._root}/{entry.path}"
            if entry.kind == "dir":
                os.mkdir(path, 0o700)
                directories.append((path, entry.mode))
            elif entry.kind == "link":
                os.symlink(entry.target, path)
            else:
                self._file(entry, path)
        for path, mode in reversed(directories):
            os.chmod(path, mode)

    def _file(self, entry: Entry, path: str) -> None:
        blob = self._store.require(entry)
        source = os.open(blob, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not (self._clones and entry.size and self._clone(source, path, entry.mode)):
                if self._may_link(entry) and _link(blob, path):
                    return
                _copy(source, path, entry)
            if not self._private:  # so that it shows when a job writes into what others share
                os.utime(path, ns=(BLOB_TIME_NS, BLOB_TIME_NS))
        finally:
            os.close(source)

    def _may_link(self, entry: Entry) -> bool:
        if entry.size < SMALLEST_LINK or entry.mode & 0o7000:
            return False
        return not self._private or not entry.mode & 0o222

    def _clone(self, source: int, path: str, mode: int) -> bool:
        target = _create(path, mode)
        try:
            system.share_blocks(source, target)
        except OSError as error:
            os.unlink(path)
            if error.errno not in _NO_CLONE:
                raise
            self._clones = False
            return False
        finally:
            os.close(target)
        return True


def _create(path: str, mode: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, mode)
    return descriptor


def _link(blob: str, path: str) -> bool:
    try:
        os.link(blob, path)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def _copy(source: int, path: str, entry: Entry) -> None:
    target = _create(path, entry.mode)
    try:
        if os.fstat(source).st_size < entry.size:
            raise StateStoreError(f"the stored content of {entry.path} is cut off")
        for start, end in system.data_ranges(source, entry.size):
            os.lseek(target, start, os.SEEK_SET)
            while start < end:
                sent = system.send_file(source, target, start, end - start)
                if sent == 0:
                    raise StateStoreError(f"the stored content of {entry.path} is cut off")
                start += sent
        os.ftruncate(target, entry.size)
    finally:
        os.close(target)


def write_sparsely(descriptor: int, content: bytes) -> None:
    """Write to a new file, with holes for blocks of zeros. The caller sets the file's length at the end."""
    view = memoryview(content)
    for at in range(0, len(content), _HOLE):
        block = view[at : at + _HOLE]
        if content.startswith(_ZEROS[: len(block)], at):
            os.lseek(descriptor, len(block), os.SEEK_CUR)
            continue
        while block:
            block = block[os.write(descriptor, block) :]
