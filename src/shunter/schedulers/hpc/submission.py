"""Put on shared storage what a job needs: code and toolkit, once for equal content, and the job's folder."""

from __future__ import annotations

import hashlib
import os
import posixpath
import tarfile
import tempfile
import time
from typing import IO, Any

from shunter.backoff import polling
from shunter.errors import BackendError, StateStoreError
from shunter.schedulers.hpc.request import HpcRequest, document_of, files_of
from shunter.schedulers.hpc.storage import STORAGE_HINT, Storage
from shunter.workspace.code_store import BLOB_TIME_NS, Store
from shunter.workspace.directory_shipment import shared_copy
from shunter.workspace.manifest import Manifest
from shunter.workspace.toolkit_files import toolkit_archive

#: How long the removal of a cancelled job's folder is tried.
REMOVAL_SECONDS = 10.0


def put_code(storage: Storage, store: Store, manifest: Manifest, shared: str) -> str:
    """Copy a workspace to the shared storage, unless it is there; returns its folder.

    Raises:
        StateStoreError: it cannot be copied; nothing of it is left.
    """
    parent = posixpath.join(shared, "code")
    if not storage.is_remote:
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


def remove_folder(storage: Storage, folder: str) -> None:
    """Remove a job's folder, into which a program that is just being stopped may still write."""
    tries = polling(REMOVAL_SECONDS)
    while True:
        try:
            return storage.remove([folder])
        except StateStoreError:
            if tries.left() == 0:
                raise
        tries.pause()
