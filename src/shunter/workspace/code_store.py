"""Keeps the content of workspaces on this machine, every file once however many jobs have it.

::

    STATE/workspaces/
        blobs/AA/DIGEST.MODE        a file's content, with the mode it has in workspaces (octal)
        manifests/FINGERPRINT.json.z
        index/                      digests of files that have not changed (`hashing`)
        views/ID/                   the working directory of one local job (`directory_shipment`)
        lock                        shared by users of the store, exclusive during cleanup

Every file is written next to its final path and then renamed, so that nothing incomplete is ever used. A blob
has one fixed modification time: a job that writes into it, through a hard link in its working directory,
changes that time, and the blob is not used again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import shutil
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from shunter import system
from shunter.errors import StateStoreError, WorkspaceChangedError, WorkspaceError
from shunter.paths import make_private_dir, remove_tree, state_dir, state_error
from shunter.progress import Progress
from shunter.workspace.manifest import Entry, Manifest

if TYPE_CHECKING:
    from shunter.workspace.snapshot import Snapshot

#: What was written more recently may belong to a job that is being submitted.
SPARED_SECONDS = 3600.0
#: Larger files, and more than this in all, are not kept for comparisons.
LARGEST_SOURCE = 256 * 1024
MOST_SOURCES = 20 * 1024 * 1024
#: Modification time of stored and of shared files: 2001-09-09, 01:46:40 UTC.
BLOB_TIME_NS = 1_000_000_000 * 1_000_000_000
#: Smaller files are copied: a link costs as much, and a job could write into it.
SMALLEST_LINK = 64 * 1024
_PIECE = 1 << 20
_NO_CLONE = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY}
)
_NO_LINK = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.EACCES})
_NUMBERS = itertools.count(time.time_ns())
_FULL = "Free space, run `shunter gc --yes`, or set SHUNTER_HOME to a directory that has room."


class Store:
    """The workspaces that are kept on this machine. Many processes may use it at once.

    Args:
        root: its directory, which need not exist; by default in the state directory.
    """

    def __init__(self, root: str | None = None) -> None:
        self.root = os.path.join(state_dir(), "workspaces") if root is None else root

    # ---- manifests

    def put_manifest(self, manifest: Manifest) -> None:
        """Store a manifest; if it is stored already, mark it as used now.

        Raises:
            StateStoreError: the disk is full, or the directory cannot be written.
        """
        path = self._manifest_path(manifest.fingerprint)
        try:
            os.utime(path)
        except OSError:
            self._write(path, zlib.compress(manifest.dumps(), 1))

    def manifest(self, fingerprint: str) -> Manifest | None:
        """Return a manifest by its fingerprint; None if it is not kept, or damaged."""
        try:
            with open(self._manifest_path(fingerprint), "rb") as file:
                found = Manifest.loads(zlib.decompress(file.read()))
        except (OSError, ValueError, zlib.error):
            return None
        return found if found.fingerprint == fingerprint else None

    def find(self, beginning: str) -> Manifest:
        """Return the manifest whose fingerprint begins with these digits.

        Raises:
            WorkspaceError: none does, or several do.
        """
        known = [name for name in self.fingerprints() if name.startswith(beginning)]
        found = self.manifest(known[0]) if len(known) == 1 else None
        if found is not None:
            return found
        if len(known) > 1:
            raise WorkspaceError(
                f"{len(known)} workspaces begin with @{beginning}",
                hint="Give more digits of the fingerprint.",
            )
        raise WorkspaceError(
            f"the workspace @{beginning} is not kept on this machine",
            hint="It was never here, or `shunter gc` removed it. Submit from a directory: --workspace DIR",
        )

    def fingerprints(self) -> list[str]:
        """Return the fingerprints of all manifests that are kept, sorted."""
        return sorted(name.partition(".")[0] for name in _names(os.path.join(self.root, "manifests")))

    # ---- content

    def add(
        self, snapshot: Snapshot, entries: Iterable[Entry] | None = None, progress: Progress | None = None
    ) -> int:
        """Keep the content of a snapshot, and its manifest. What is there already is not read again.

        Args:
            snapshot: the workspace.
            entries: only these of its entries; all by default.
            progress: receives the bytes that are copied.

        Returns:
            How many bytes were new.

        Raises:
            WorkspaceChangedError: a file no longer has the content that was hashed.
            StateStoreError: the disk is full, or the directory cannot be written.
        """
        wanted = snapshot.manifest.entries if entries is None else entries
        with self._locked():
            self.put_manifest(snapshot.manifest)
            # by path, so that of two files with the same content one is copied
            missing = {self.blob_path(e): e for e in wanted if e.kind == "file" and not self._is_sound(e)}
            total, added = sum(entry.size for entry in missing.values()), 0
            if missing and progress is not None:
                progress.step("copying the workspace")
            for entry in missing.values():
                self._add_blob(snapshot, entry)
                added += entry.size
                if progress is not None:
                    progress.advance("workspace", added, total)
        return total

    def has_all(self, manifest: Manifest) -> bool:
        """Tell whether the content of every file is stored and unchanged."""
        return all(self._is_sound(entry) for entry in manifest.entries if entry.kind == "file")

    def keep_sources(self, snapshot: Snapshot) -> None:
        """Keep the manifest of a workspace that is shipped elsewhere, and its small files for comparisons.

        Files up to 256 KiB, the smallest first, 20 MiB in all. A file that has been changed meanwhile is
        left out.
        """
        self.put_manifest(snapshot.manifest)
        left = MOST_SOURCES
        small = [e for e in snapshot.manifest.entries if e.kind == "file" and e.size <= LARGEST_SOURCE]
        with contextlib.suppress(StateStoreError), self._locked():
            for entry in sorted(small, key=lambda entry: entry.size):
                left -= entry.size
                if left < 0:
                    return
                if not self._is_sound(entry):
                    with contextlib.suppress(WorkspaceChangedError):
                        self._add_blob(snapshot, entry)

    def read_blob(self, digest: str) -> bytes | None:
        """Return the content that has this digest; None if it is not kept, or has been damaged."""
        directory = os.path.join(self.root, "blobs", digest[:2])
        for name in _names(directory):
            if name.startswith(f"{digest}."):
                with contextlib.suppress(OSError), open(os.path.join(directory, name), "rb") as file:
                    data = file.read()
                    if hashlib.sha256(data).hexdigest() == digest:
                        return data
        return None

    def blob_path(self, entry: Entry) -> str:
        """Return where the content of a file entry is kept, with its mode."""
        return os.path.join(self.root, "blobs", entry.digest[:2], f"{entry.digest}.{entry.mode:o}")

    def require(self, entry: Entry) -> str:
        """Return the path of a file entry's content.

        Raises:
            StateStoreError: it is missing, or something wrote into it.
        """
        if not self._is_sound(entry):
            raise StateStoreError(
                f"the stored content of {entry.path} is missing or was changed: {self.blob_path(entry)}",
                hint="Submit from the directory again, which repairs the store.",
            )
        return self.blob_path(entry)

    def materialize(self, manifest: Manifest, directory: str, *, private: bool = False) -> None:
        """Make a directory with the content of a workspace. It is there whole, or not at all.

        Content is shared with the store where the file system can do that: by reflink, otherwise by hard
        link for files of 64 KiB and more.

        Args:
            manifest: whose content `add` has kept.
            directory: must not exist; the directory above it is made.
            private: whether a job will write into it, so that only files that nobody may write to are
                hard-linked.

        Raises:
            StateStoreError: the disk is full, content is missing or was damaged, or the directory exists.
        """
        partial = _beside(directory)
        with self._locked():
            if os.path.lexists(directory):
                raise StateStoreError(
                    f"the directory {directory} exists already", hint="Remove it, and try again."
                )
            try:
                os.makedirs(os.path.dirname(directory), mode=0o700, exist_ok=True)
                os.mkdir(partial, 0o700)
                _TreeBuilder(self, partial, private=private).build(manifest)
                os.rename(partial, directory)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    remove_tree(partial)
                if not isinstance(error, OSError):
                    raise
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise StateStoreError(f"the directory {directory} exists already") from error
                raise _store_error("make the directory", directory, error) from error

    # ---- cleaning up

    def garbage(self, keep_fingerprints: Iterable[str], older_than: float = SPARED_SECONDS) -> list[str]:
        """Return the fingerprints that `collect` would remove."""
        keep, now = set(keep_fingerprints), time.time()
        return [
            fingerprint
            for fingerprint in self.fingerprints()
            if fingerprint not in keep
            and _age(self._manifest_path(fingerprint), now) >= max(older_than, SPARED_SECONDS)
        ]

    def collect(
        self, keep_fingerprints: Iterable[str], older_than: float = 0.0, *, spared: float = SPARED_SECONDS
    ) -> int:
        """Remove workspaces that nobody needs, and what interrupted processes have left behind.

        Args:
            keep_fingerprints: of workspaces that are needed.
            older_than: others are kept, too, if they were used within this many seconds.
            spared: nothing that is younger than this, in seconds, is removed.

        Returns:
            How many bytes that frees.

        Raises:
            StateStoreError: something cannot be removed.
        """
        if not os.path.isdir(self.root):
            return 0
        with self._locked(alone=True):
            return self._collect(set(keep_fingerprints), max(older_than, spared), spared)

    def _collect(self, keep: set[str], older_than: float, spared: float) -> int:
        now = time.time()
        paths = [self._manifest_path(name) for name in self.fingerprints() if name not in keep]
        freed = sum(_remove(path) for path in paths if _age(path, now) >= older_than)
        files: set[str] = set()
        for fingerprint in self.fingerprints():
            manifest = self.manifest(fingerprint)
            for entry in manifest.entries if manifest is not None else ():
                if entry.kind == "file":
                    files.add(os.path.basename(self.blob_path(entry)))
        for folder, wanted in (("blobs", files), ("manifests", None)):
            for path in _files(os.path.join(self.root, folder)):
                name = os.path.basename(path)
                needed = not name.startswith(".") if wanted is None else name in wanted
                if not needed and _age(path, now, by_change=True) >= spared:
                    freed += _remove(path)
        # working directories whose making was interrupted
        views = os.path.join(self.root, "views")
        for name in os.listdir(views) if os.path.isdir(views) else ():
            path = os.path.join(views, name)
            if name.startswith(".") and _age(path, now, by_change=True) >= spared:
                try:
                    remove_tree(path)
                except OSError as error:
                    raise _store_error("remove", path, error) from error
        # the digests of projects that nothing was submitted from for long
        index = list(_files(os.path.join(self.root, "index")))
        return freed + sum(_remove(path) for path in index if _age(path, now) >= older_than)

    # ---- within

    def _manifest_path(self, fingerprint: str) -> str:
        return os.path.join(self.root, "manifests", f"{fingerprint}.json.z")

    def _is_sound(self, entry: Entry) -> bool:
        try:
            info = os.lstat(self.blob_path(entry))
        except OSError:
            return False
        untouched = info.st_mtime_ns == BLOB_TIME_NS and info.st_mode & 0o7777 == entry.mode
        return untouched and info.st_size == entry.size

    def _add_blob(self, snapshot: Snapshot, entry: Entry) -> None:
        with self._new_file(self.blob_path(entry)) as temporary, open(_create(temporary), "wb") as file:
            for chunk in snapshot.read(entry):
                file.write(chunk)
            file.flush()
            os.fchmod(file.fileno(), entry.mode)
            os.utime(file.fileno(), ns=(BLOB_TIME_NS, BLOB_TIME_NS))

    def _write(self, path: str, data: bytes) -> None:
        with self._new_file(path) as temporary, open(temporary, "xb") as file:
            file.write(data)

    @contextlib.contextmanager
    def _new_file(self, path: str) -> Iterator[str]:
        """Give a path beside a file's. What is written there becomes the file, unless that fails."""
        temporary = _beside(path)
        try:
            directory = os.path.dirname(path)
            if not os.path.isdir(directory):
                make_private_dir(self.root)
                os.makedirs(directory, mode=0o700, exist_ok=True)
            yield temporary
            os.replace(temporary, path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, OSError):
                raise _store_error("write", path, error) from error
            raise

    @contextlib.contextmanager
    def _locked(self, *, alone: bool = False) -> Iterator[None]:
        """Hold the store's lock: together with others who use it, or alone."""
        make_private_dir(self.root)
        path = os.path.join(self.root, "lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _store_error("open", path, error) from error
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)


class _TreeBuilder:
    """Builds a directory from stored content."""

    def __init__(self, store: Store, root: str, *, private: bool) -> None:
        self._store = store
        self._root = root
        self._private = private
        self._clones = True

    def build(self, manifest: Manifest) -> None:
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
        target = _create(path)
        try:
            system.share_blocks(source, target)
            os.fchmod(target, mode)
        except OSError as error:
            os.unlink(path)
            if error.errno not in _NO_CLONE:
                raise
            self._clones = False
            return False
        finally:
            os.close(target)
        return True


def _create(path: str) -> int:
    """Make a file. Its mode is set when its content is there: writing clears set-id bits, except for root."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _link(blob: str, path: str) -> bool:
    try:
        os.link(blob, path)
    except FileNotFoundError:  # another process has just put the same content in its place
        return False
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def _copy(source: int, path: str, entry: Entry) -> None:
    with open(_create(path), "wb") as target, open(source, "rb", closefd=False) as content:
        shutil.copyfileobj(content, target, _PIECE)
        if target.tell() != entry.size:
            raise StateStoreError(f"the stored content of {entry.path} does not have its length")
        target.flush()
        os.fchmod(target.fileno(), entry.mode)


def _store_error(attempt: str, path: str, error: OSError) -> StateStoreError:
    described = state_error(attempt, path, error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        described.hint = _FULL
    return described


def _beside(path: str) -> str:
    """Return a name next to a path that nobody else uses."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name[:80]}.{os.getpid()}.{next(_NUMBERS)}.tmp")


def _names(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if not name.startswith(".")]
    except OSError:
        return []


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
    """Remove a file; returns the bytes that this frees."""
    try:
        info = os.lstat(path)
        os.unlink(path)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise _store_error("remove", path, error) from error
    # what is still linked from a working directory stays on the disk
    return info.st_blocks * 512 if info.st_nlink == 1 and stat.S_ISREG(info.st_mode) else 0
