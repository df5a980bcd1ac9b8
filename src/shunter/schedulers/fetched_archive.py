"""Fetches an archive of results from S3, where an earlier attempt ended."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from contextlib import ExitStack, suppress
from typing import IO

from shunter._toolkit.store import Item, Store, StoreError
from shunter.errors import BackendError, StateStoreError
from shunter.paths import make_private_dir, state_dir, state_error
from shunter.progress import Progress

#: Where archives are while they are fetched.
FOLDER = "archives"


def fetched_archive(store: Store, item: Item, progress: Progress) -> IO[bytes]:
    """Return an object as an open file without a name, at its start.

    A transfer that is cut leaves what has come in the state directory; the next one goes on there.

    Args:
        store: reads S3.
        item: the object, of the version that was listed.
        progress: shows how much has come.

    Raises:
        BackendError: it cannot be read, or has changed since it was listed.
        StateStoreError: there is no space for it.
    """
    version = f"{item.place.uri} {item.tag} {item.size}"
    path = os.path.join(state_dir(), FOLDER, hashlib.sha256(version.encode()).hexdigest()[:32])
    name = os.path.basename(item.place.key)
    progress.step(f"fetching {name}")
    with ExitStack() as stack:
        try:
            make_private_dir(os.path.dirname(path))
            file = stack.enter_context(
                open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
            )
            fcntl.flock(file, fcntl.LOCK_EX)  # another process may be fetching it
            have = file.seek(0, os.SEEK_END)
            missing, free = item.size - have, shutil.disk_usage(os.path.dirname(path)).free
            if missing > free:
                raise StateStoreError(
                    f"cannot fetch {item.place.uri}: {missing} bytes are missing, and {path} is on a disk "
                    f"with {free} bytes left",
                    hint="Set SHUNTER_HOME to a directory on a larger disk.",
                )
            for block in store.chunks(item.place, item.tag, have) if missing else ():
                file.write(block)
                have += len(block)
                progress.advance(name, have, item.size)
            file.seek(0)
            with suppress(FileNotFoundError):  # the other process has done so
                os.unlink(path)
            fcntl.flock(file, fcntl.LOCK_UN)  # the file stays open for long
        except StoreError as error:
            raise BackendError(
                f"cannot fetch the results: {error}", hint="The next fetch goes on there."
            ) from error
        except OSError as error:
            raise state_error("fetch an archive to", path, error) from error
        stack.pop_all()
    return file


def cut_transfers(older_than: float) -> list[str]:
    """Return the files of transfers that ended early, at least ``older_than`` seconds ago."""
    folder = os.path.join(state_dir(), FOLDER)
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.stat().st_mtime < time.time() - older_than]
    except OSError:  # there has been none
        return []
