"""Keeps the content of workspaces on this machine, every file once whatever jobs have it.

::

    STATE/workspaces/
        blobs/AA/DIGEST.MODE        a file's content, with the mode it has in workspaces (octal)
        sources/AA/DIGEST           a small file's content, kept for comparisons only, compressed
        manifests/FINGERPRINT.json.z
        index/                      digests of files that have not changed (`index`)
        views/ID/                   the working directory of one local job (`directory`)
        lock                        held by those who use it, and alone by who cleans up

Every file comes into being beside its place and is renamed into it, so that nothing half-written is ever
used. A blob has one fixed modification time: whoever wrote into it, through a hard link in a job's working
directory, has thereby changed that time, and the blob is not used again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from trainyard.errors import StateStoreError, WorkspaceChangedError, WorkspaceError
from trainyard.paths import make_private_dir, state_dir, state_error
from trainyard.workspace.manifest import Entry, Manifest
from trainyard.workspace.tree import BLOB_TIME_NS, build, write_sparsely

if TYPE_CHECKING:
    from trainyard.progress import Progress
    from trainyard.workspace.snapshot import Snapshot

#: What was written so recently may belong to a job that is being submitted.
SPARED_SECONDS = 3600.0
#: Larger files, and more than this in all, are not kept for comparisons.
LARGEST_SOURCE = 256 * 1024
MOST_SOURCES = 20 * 1024 * 1024
_NUMBERS = itertools.count(time.time_ns())
FULL = "Free space, run `trainyard gc --yes`, or set TRAINYARD_HOME to a directory that has room."


class Store:
    """The workspaces that are kept on this machine. Many processes may use it at once.

    Args:
        root: its directory, which need not exist; by default in the state directory.
    """

    def __init__(self, root: str | None = None) -> None:
        self.root = os.path.join(state_dir(), "workspaces") if root is None else root

    # ---- manifests

    def put_manifest(self, manifest: Manifest) -> None:
        """Keep a manifest; one that is there already counts as used now.

        Raises:
            StateStoreError: the disk is full, or the directory cannot be written.
        """
        path = self._manifest_path(manifest.fingerprint)
        try:
            os.utime(path)
        except OSError:
            with self._writing(path):
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
        """Return the manifest whose fingerprint begins so.

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
            hint="It was never here, or `trainyard gc` removed it. Submit from a directory: --workspace DIR",
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
            progress: told of the bytes, if there are any to be copied.

        Returns:
            How many bytes were new.

        Raises:
            WorkspaceChangedError: a file no longer has the content that was hashed.
            StateStoreError: the disk is full, or the directory cannot be written.
        """
        wanted = snapshot.manifest.entries if entries is None else entries
        with self._locked():
            self.put_manifest(snapshot.manifest)
            # of two files with the same content, one
            lacking = {self.blob_path(e): e for e in wanted if e.kind == "file" and not self._is_sound(e)}
            missing = list(lacking.values())
            total, added = sum(entry.size for entry in missing), 0
            if missing and progress is not None:
                progress.step("copying the workspace")
            for entry in missing:
                self._add_blob(snapshot, entry)
                added += entry.size
                if progress is not None:
                    progress.advance("workspace", added, total)
        return total

    def has_all(self, manifest: Manifest) -> bool:
        """Tell whether the content of every file is there, and as it was put there."""
        return all(self._is_sound(entry) for entry in manifest.entries if entry.kind == "file")

    def snapshot(self, beginning: str) -> Snapshot:
        """Return a workspace that an earlier job ran with, by the beginning of its fingerprint.

        Raises:
            WorkspaceError: it is not kept, or not all of it.
        """
        from trainyard.workspace.selection import Report
        from trainyard.workspace.snapshot import Snapshot

        manifest = self.find(beginning)
        if not self.has_all(manifest):
            raise WorkspaceError(
                f"the content of the workspace @{manifest.fingerprint[:12]} is not kept on this machine",
                hint="Submit from a directory instead: --workspace DIR",
            )
        blobs = {entry.path: self.blob_path(entry) for entry in manifest.entries if entry.kind == "file"}
        return Snapshot(manifest, Report(), blobs)

    def keep_sources(self, snapshot: Snapshot) -> None:
        """Keep the small files of a workspace, for comparisons; does nothing if the disk is full.

        Files up to 256 KiB, the smallest first, 20 MiB in all. A file that has been changed meanwhile is
        left out.
        """
        left = MOST_SOURCES
        small = [e for e in snapshot.manifest.entries if e.kind == "file" and e.size <= LARGEST_SOURCE]
        with contextlib.suppress(StateStoreError), self._locked():
            for entry in sorted(small, key=lambda entry: entry.size):
                left -= entry.size
                if left < 0:
                    return
                path = self._source_path(entry.digest)
                if os.path.exists(path) or self._is_sound(entry):
                    continue
                with contextlib.suppress(WorkspaceChangedError), self._writing(path):
                    self._write(path, zlib.compress(b"".join(snapshot.read(entry)), 1))

    def read_blob(self, digest: str) -> bytes | None:
        """Return the content that has this digest; None if it is not kept, or has been damaged."""
        try:
            with open(self._source_path(digest), "rb") as file:
                data = zlib.decompress(file.read())
            if hashlib.sha256(data).hexdigest() == digest:
                return data
        except (OSError, zlib.error):
            pass
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

    # ---- directories

    def materialize(self, manifest: Manifest, directory: str, *, private: bool = False) -> None:
        """Make a directory with the content of a workspace. It is there whole, or not at all.

        Content is shared with the store where the file system can do that: by reflink, otherwise by hard
        link for files of 64 KiB and more.

        Args:
            manifest: whose content `add` has kept.
            directory: must not exist; the directory above it is made.
            private: whether somebody will write into it, so that nothing may be hard-linked but files that
                nobody may write to.

        Raises:
            StateStoreError: the disk is full, content is missing or was damaged, or the directory exists.
        """
        with self._locked():
            build(self, manifest, directory, private=private)

    def require(self, entry: Entry) -> str:
        """Return the path of a file entry's content.

        Raises:
            StateStoreError: it is missing, or somebody wrote into it.
        """
        if not self._is_sound(entry):
            raise StateStoreError(
                f"the stored content of {entry.path} is missing or was changed: {self.blob_path(entry)}",
                hint="Submit from the directory again, which mends the store.",
            )
        return self.blob_path(entry)

    # ---- cleaning up

    def collect(
        self, keep_fingerprints: Iterable[str], older_than: float = 0.0, *, spared: float = SPARED_SECONDS
    ) -> int:
        """Remove workspaces that nobody needs, and what interrupted processes have left behind.

        Args:
            keep_fingerprints: of workspaces that are needed.
            older_than: others are kept, too, if they were used within so many seconds.
            spared: nothing that is younger than this, in seconds, is removed.

        Returns:
            How many bytes that frees.

        Raises:
            StateStoreError: something cannot be removed.
        """
        from trainyard.workspace.collection import collect

        if not os.path.isdir(self.root):
            return 0
        with self._locked(alone=True):
            return collect(self, set(keep_fingerprints), older_than, spared)

    def garbage(self, keep_fingerprints: Iterable[str], older_than: float = 0.0) -> list[str]:
        """Return the fingerprints that `collect` would remove."""
        from trainyard.workspace.collection import unneeded

        return unneeded(self, set(keep_fingerprints), max(older_than, SPARED_SECONDS))

    # ---- within

    def _manifest_path(self, fingerprint: str) -> str:
        return os.path.join(self.root, "manifests", f"{fingerprint}.json.z")

    def _source_path(self, digest: str) -> str:
        return os.path.join(self.root, "sources", digest[:2], digest)

    def _is_sound(self, entry: Entry) -> bool:
        try:
            info = os.lstat(self.blob_path(entry))
        except OSError:
            return False
        untouched = info.st_mtime_ns == BLOB_TIME_NS and info.st_mode & 0o7777 == entry.mode
        return untouched and info.st_size == entry.size

    def _add_blob(self, snapshot: Snapshot, entry: Entry) -> None:
        path = self.blob_path(entry)
        temporary = _beside(path)
        with self._writing(temporary):
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb", buffering=0):
                for chunk in snapshot.read(entry):
                    write_sparsely(descriptor, chunk)
                os.ftruncate(descriptor, entry.size)
                os.fchmod(descriptor, entry.mode)
                os.utime(descriptor, ns=(BLOB_TIME_NS, BLOB_TIME_NS))
            os.replace(temporary, path)

    def _write(self, path: str, data: bytes) -> None:
        temporary = _beside(path)
        try:
            with open(temporary, "xb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            _unlink(temporary)
            raise

    @contextlib.contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        """Make the directory of a file that is to be written, and remove the file if that fails."""
        try:
            _make_directory(os.path.dirname(path), self.root)
            yield
        except OSError as error:
            _unlink(path)
            raise store_error("write", path, error) from error
        except BaseException:
            _unlink(path)
            raise

    @contextlib.contextmanager
    def _locked(self, *, alone: bool = False) -> Iterator[None]:
        """Hold the store's lock: together with others who use it, or alone."""
        make_private_dir(self.root)
        path = os.path.join(self.root, "lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise store_error("open", path, error) from error
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)


def store_error(attempt: str, path: str, error: OSError) -> StateStoreError:
    """Describe a failure of the file system."""
    described = state_error(attempt, path, error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        described.hint = FULL
    return described


def beside(path: str) -> str:
    """Return a name next to a path that nobody else uses."""
    return _beside(path)


def _beside(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name[:80]}.{os.getpid()}.{next(_NUMBERS)}.tmp")


def _make_directory(path: str, root: str) -> None:
    if not os.path.isdir(path):
        make_private_dir(root)
        os.makedirs(path, mode=0o700, exist_ok=True)


def _names(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if not name.startswith(".")]
    except OSError:
        return []


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def remove_tree(path: str) -> None:
    """Remove a directory, also one whose directories nobody may write to.

    Raises:
        OSError: it cannot be removed.
    """

    def mend(function: object, name: str, _: object) -> None:
        os.chmod(os.path.dirname(name), 0o700)
        if os.path.isdir(name) and not os.path.islink(name):
            os.chmod(name, 0o700)
            shutil.rmtree(name)
        else:
            os.unlink(name)

    if os.path.lexists(path):
        shutil.rmtree(path, onerror=mend)
