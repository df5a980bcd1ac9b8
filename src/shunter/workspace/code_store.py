"""Keeps the content of workspaces on this machine, every file once however many jobs have it.

::

    STATE/workspaces/
        blobs/AA/DIGEST             a file's content
        manifests/FINGERPRINT.json.z
        index/                      digests of files that have not changed (`file_digests`)
        views/ID/                   the working directory of one local job (`directory_shipment`)
        lock                        shared by users of the store, exclusive during cleanup

Every file is written next to its final path and then renamed, so that nothing incomplete is ever used. A blob
has one fixed modification time: if something writes into it, it is not used again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
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
            self._put(path, [zlib.compress(manifest.dumps(), 1)])

    def manifest(self, fingerprint: str) -> Manifest | None:
        """Return a manifest by its fingerprint; None if it is not kept, or damaged."""
        try:
            with open(self._manifest_path(fingerprint), "rb") as file:
                manifest = Manifest.loads(zlib.decompress(file.read()))
        except (OSError, ValueError, zlib.error):
            return None
        return manifest if manifest.fingerprint == fingerprint else None

    def find(self, beginning: str) -> Manifest:
        """Return the manifest whose fingerprint begins with these digits.

        Raises:
            WorkspaceError: none does, or several do.
        """
        names = [name for name in self.fingerprints() if name.startswith(beginning)]
        if len(names) > 1:
            raise WorkspaceError(
                f"{len(names)} workspaces begin with @{beginning}",
                hint="Give more digits of the fingerprint.",
            )
        manifest = self.manifest(names[0]) if names else None
        if manifest is not None:
            return manifest
        raise WorkspaceError(
            f"the workspace @{beginning} is not kept on this machine",
            hint="It was never here, or `shunter gc` removed it. Submit from a directory: --workspace DIR",
        )

    def fingerprints(self) -> list[str]:
        """Return the fingerprints of all manifests that are kept, sorted."""
        names = _listed(os.path.join(self.root, "manifests"))
        return sorted(name.partition(".")[0] for name in names if not name.startswith("."))

    # ---- content

    def add(self, snapshot: Snapshot, progress: Progress | None = None) -> int:
        """Keep the content of a snapshot, and its manifest. What is there already is not read again.

        Args:
            snapshot: the workspace.
            progress: receives the bytes that are copied.

        Returns:
            How many bytes were new.

        Raises:
            WorkspaceChangedError: a file no longer has the content that was hashed.
            StateStoreError: the disk is full, or the directory cannot be written.
        """
        with self._locked():
            self.put_manifest(snapshot.manifest)
            # by digest, so that of two files with the same content one is copied
            missing = {entry.digest: entry for entry in snapshot.manifest.entries if self._lacks(entry)}
            total, added = sum(entry.size for entry in missing.values()), 0
            if missing and progress is not None:
                progress.step("copying the workspace")
            for entry in missing.values():
                self._put(self.blob_path(entry), snapshot.read(entry), BLOB_TIME_NS)
                added += entry.size
                if progress is not None:
                    progress.advance("workspace", added, total)
        return total

    def has_all(self, manifest: Manifest) -> bool:
        """Tell whether the content of every file is stored and unchanged."""
        return not any(map(self._lacks, manifest.entries))

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
                if self._lacks(entry):
                    with contextlib.suppress(WorkspaceChangedError):
                        self._put(self.blob_path(entry), snapshot.read(entry), BLOB_TIME_NS)

    def read_blob(self, digest: str) -> bytes | None:
        """Return the content that has this digest; None if it is not kept, or has been damaged."""
        try:
            with open(self._blob_path(digest), "rb") as file:
                data = file.read()
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == digest else None

    def blob_path(self, entry: Entry) -> str:
        """Return where the content of a file entry is kept."""
        return self._blob_path(entry.digest)

    def require(self, entry: Entry) -> str:
        """Return the path of a file entry's content.

        Raises:
            StateStoreError: it is missing, or something wrote into it.
        """
        if self._lacks(entry):
            raise StateStoreError(
                f"the stored content of {entry.path} is missing or was changed: {self.blob_path(entry)}",
                hint="Submit from the directory again, which repairs the store.",
            )
        return self.blob_path(entry)

    def materialize(self, manifest: Manifest, directory: str) -> None:
        """Make a directory with the content of a workspace. It is there whole, or not at all.

        Its files share blocks with the store where the file system can do that.

        Args:
            manifest: whose content `add` has kept.
            directory: must not exist; the directory above it is made.

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
                self._make_tree(manifest, partial)
                os.rename(partial, directory)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    remove_tree(partial)
                if not isinstance(error, OSError):
                    raise
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise StateStoreError(f"the directory {directory} exists already") from error
                raise _store_error("make the directory", directory, error) from error

    def _make_tree(self, manifest: Manifest, root: str) -> None:
        os.mkdir(root, 0o700)
        directories = []
        for entry in manifest.entries:  # sorted, so that a directory comes before what is in it
            path = f"{root}/{entry.path}"
            if entry.kind == "dir":
                os.mkdir(path, 0o700)
                directories.append((path, entry.mode))
            elif entry.kind == "link":
                os.symlink(entry.target, path)
            else:
                system.copy_content(self.require(entry), path)
                os.chmod(path, entry.mode)
                os.utime(path, ns=(BLOB_TIME_NS, BLOB_TIME_NS))  # so that it shows when a job writes into it
        for path, mode in reversed(directories):
            os.chmod(path, mode)

    # ---- cleaning up

    def garbage(self, keep_fingerprints: Iterable[str], older_than: float = 0.0) -> list[str]:
        """Return the fingerprints of workspaces that nobody needs.

        Args:
            keep_fingerprints: of workspaces that are needed.
            older_than: others are kept, too, if they were used within this many seconds, or the last hour.
        """
        keep, limit = set(keep_fingerprints), time.time() - max(older_than, SPARED_SECONDS)
        return [
            fingerprint
            for fingerprint in self.fingerprints()
            if fingerprint not in keep and _is_older(self._manifest_path(fingerprint), limit)
        ]

    def collect(self, keep_fingerprints: Iterable[str], older_than: float = 0.0) -> int:
        """Remove `garbage`, and what interrupted processes have left behind.

        Returns:
            How many bytes that frees.

        Raises:
            StateStoreError: something cannot be removed.
        """
        if not os.path.isdir(self.root):
            return 0
        with self._locked(alone=True):
            garbage = self.garbage(keep_fingerprints, older_than)
            freed = sum(_remove(self._manifest_path(fingerprint)) for fingerprint in garbage)
            manifests = filter(None, map(self.manifest, self.fingerprints()))
            digests = {entry.digest for manifest in manifests for entry in manifest.entries}
            limit = time.time() - SPARED_SECONDS
            for path in _files(os.path.join(self.root, "blobs")):
                if os.path.basename(path) not in digests and _is_older(path, limit):
                    freed += _remove(path)
            for folder in ("manifests", "views"):  # what was not finished
                for name in _listed(os.path.join(self.root, folder)):
                    path = os.path.join(self.root, folder, name)
                    if name.startswith(".") and _is_older(path, limit):
                        freed += _remove(path)
            # the digests of projects that nothing was submitted from for long
            limit = time.time() - max(older_than, SPARED_SECONDS)
            for path in _files(os.path.join(self.root, "index")):
                freed += _remove(path) if _is_older(path, limit) else 0
            return freed

    # ---- within

    def _manifest_path(self, fingerprint: str) -> str:
        return os.path.join(self.root, "manifests", f"{fingerprint}.json.z")

    def _blob_path(self, digest: str) -> str:
        return os.path.join(self.root, "blobs", digest[:2], digest)

    def _lacks(self, entry: Entry) -> bool:
        """Tell whether an entry is a file whose content is not stored, or was changed."""
        if entry.kind != "file":
            return False
        try:
            info = os.lstat(self.blob_path(entry))
        except OSError:
            return True
        return (info.st_size, info.st_mtime_ns) != (entry.size, BLOB_TIME_NS)

    def _put(self, path: str, content: Iterable[bytes], time_ns: int | None = None) -> None:
        """Write a file of the store, whole or not at all; ``time_ns`` is its modification time."""
        temporary = _beside(path)
        try:
            if not os.path.isdir(os.path.dirname(path)):
                make_private_dir(self.root)
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(temporary, "xb") as file:
                file.writelines(content)
            if time_ns is not None:
                os.utime(temporary, ns=(time_ns, time_ns))
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


def _store_error(attempt: str, path: str, error: OSError) -> StateStoreError:
    described = state_error(attempt, path, error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        described.hint = _FULL
    return described


def _beside(path: str) -> str:
    """Return a name next to a path that nobody else uses."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name[:80]}.{os.getpid()}.{next(_NUMBERS)}.tmp")


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _files(root: str) -> Iterator[str]:
    for directory, _, names in os.walk(root):
        for name in names:
            yield os.path.join(directory, name)


def _is_older(path: str, limit: float) -> bool:
    """Tell whether a file was last touched before a time; of blobs only the change time tells."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return (info.st_ctime if info.st_mtime_ns == BLOB_TIME_NS else info.st_mtime) < limit


def _remove(path: str) -> int:
    """Remove a file, or a directory with what is in it; returns the bytes that removing a file frees."""
    try:
        info = os.lstat(path)
        if stat.S_ISDIR(info.st_mode):
            remove_tree(path)
            return 0
        os.unlink(path)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise _store_error("remove", path, error) from error
    return info.st_blocks * 512
