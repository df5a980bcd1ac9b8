"""Submit a job: copy code and toolkit once, make the job's folder, send the script to the queue."""

from __future__ import annotations

import hashlib
import os
import posixpath
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

from shunter.backoff import polling
from shunter.errors import BackendError, StateStoreError, UnreachableError
from shunter.schedulers.hpc.request import LINK, HpcRequest, document_of, files_of
from shunter.schedulers.hpc.shared_folder import FOLLOW_UP_IDS
from shunter.schedulers.hpc.storage import STORAGE_HINT, Storage, check_owners
from shunter.workspace.code_store import BLOB_TIME_NS, Store
from shunter.workspace.directory_shipment import shared_copy
from shunter.workspace.manifest import Manifest
from shunter.workspace.toolkit_files import toolkit_archive


class NotSentError(UnreachableError):
    """The queue cannot be reached, so it has not received the submission."""


#: How long the removal of a cancelled job's folder is tried.
REMOVAL_SECONDS = 10.0


def check_shared_folder(storage: Storage, shared: str) -> None:
    """Check that what is there already belongs to us: nobody else may change what jobs run.

    Raises:
        StateStoreError: it belongs to another user.
    """
    check_owners(storage, [shared, *(posixpath.join(shared, part) for part in ("jobs", "code", "toolkit"))])


def put_code(storage: Storage, store: Store, manifest: Manifest, shared: str, *, is_remote: bool) -> str:
    """Copy a workspace to the shared storage, unless it is there; returns its folder.

    Raises:
        StateStoreError: it cannot be copied; nothing of it is left.
    """
    parent = posixpath.join(shared, "code")
    if not is_remote:
        storage.make_folder(parent)
        try:
            return shared_copy(store, manifest, parent)
        except StateStoreError as error:
            raise StateStoreError(error.message, hint=STORAGE_HINT) from error
    folder = posixpath.join(parent, manifest.fingerprint[:32])
    if not storage.exists(folder):
        with workspace_archive(store, manifest) as archive:
            storage.put_archive(folder, archive)
    return folder


def workspace_archive(store: Store, manifest: Manifest) -> IO[bytes]:
    """Return a tar archive of a workspace, in an unnamed file."""
    raw = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in manifest.entries:
            info = tarfile.TarInfo(entry.path)
            info.mode, info.mtime = entry.mode, BLOB_TIME_NS // 1_000_000_000
            if entry.kind == "dir":
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            elif entry.kind == "link":
                info.type, info.linkname = tarfile.SYMTYPE, entry.target
                archive.addfile(info)
            else:
                with open(os.fspath(store.require(entry)), "rb") as file:
                    info.size = entry.size
                    archive.addfile(info, file)
    raw.seek(0)
    return raw


def put_toolkit(storage: Storage, shared: str) -> str:
    """Copy the toolkit to the shared storage, unless it is there; returns its path."""
    content = toolkit_archive()
    folder = posixpath.join(shared, "toolkit", hashlib.sha256(content).hexdigest()[:16])
    if not storage.exists(folder):
        storage.put_folder(folder, {"toolkit.pyz": (content, 0o644)})
    return posixpath.join(folder, "toolkit.pyz")


def put_job(storage: Storage, request: HpcRequest, facts: dict[str, Any]) -> None:
    """Make a job's folder.

    Raises:
        BackendError: there is such a job already.
    """
    document = {**document_of(request), "created_at": time.time(), **facts}
    empty = ["state", "logs", "ml", "work"]
    if not storage.put_folder(request.folder, files_of(request, document), empty):
        raise BackendError(f"the job {request.app_id} has been submitted already")


def submit_links(
    storage: Storage,
    request: HpcRequest,
    submit: Callable[[str, int, str], str],
    cancel: Callable[[Sequence[str]], object],
    find: Callable[[], Sequence[str]],
    follow: Callable[[str], str] | None = None,
) -> list[str]:
    """Submit the script once, or several times for a chain; returns the native ids.

    Args:
        storage: where the job's folder is.
        request: what is submitted.
        submit: submits a script, given its number in the chain and the native id of the one before ("" for
            the first); returns the native id.
        cancel: cancels submissions.
        find: asks the queue for submissions of the job that have not ended.
        follow: submits what follows on the end of the last one, given its native id; returns the native id.

    Raises:
        ShunterError: one was refused; the others have been cancelled, and the folder is gone.
        KeyboardInterrupt: likewise. If the queue does not answer, the folder stays, and the job can be found.
    """
    native: list[str] = []
    try:
        for link in range(request.chain):
            script = request.script.replace(LINK, str(link))
            native.append(submit(script, link, native[-1] if native else ""))
            storage.write(posixpath.join(request.folder, "native"), ("\n".join(native) + "\n").encode())
        if follow is not None:
            storage.write(posixpath.join(request.folder, FOLLOW_UP_IDS), f"{follow(native[-1])}\n".encode())
    except BaseException as error:
        if isinstance(error, UnreachableError) and not isinstance(error, NotSentError):
            raise  # it may have been submitted: the folder stays, and `describe` looks it up by its name
        try:
            if not isinstance(error, Exception):  # interrupted: the queue may have taken one more
                native += [each for each in find() if each not in native]
            if native:
                cancel(native)
            _remove_folder(storage, request.folder)
        except (BackendError, StateStoreError):
            pass
        raise
    return native


def _remove_folder(storage: Storage, folder: str) -> None:
    """Remove a job's folder, into which a program that is just being stopped may still write."""
    tries = polling(REMOVAL_SECONDS)
    while True:
        try:
            return storage.remove([folder])
        except StateStoreError:
            if tries.left() == 0:
                raise
        tries.pause()
