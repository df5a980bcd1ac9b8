"""Folders that are kept in step with a store while a job runs: checkpoints."""

from __future__ import annotations

import os
import shutil
import threading

from trainyard.schedulers.aws.sagemaker_local.objects import Objects, Place, StoreFailure, in_parallel

Stamp = tuple[int, int, int]
SECONDS_BETWEEN = 0.5


class Mirror(threading.Thread):
    """Sends the files of a folder that have come to rest. Deletions are not mirrored, as on the service.

    Args:
        folder: the folder.
        place: where its files go.
        objects: the store.
    """

    def __init__(self, folder: str, place: Place, objects: Objects) -> None:
        super().__init__(name="checkpoints", daemon=True)
        self._folder = folder
        self._place = place
        self._objects = objects
        self._sent = _stamps(folder)
        self._seen: dict[str, Stamp] = dict(self._sent)
        self._closing = threading.Event()
        #: Why what changed last could not be sent; "" if it could.
        self.problem = ""

    def run(self) -> None:
        """Send what changes until `finish`."""
        while not self._closing.wait(SECONDS_BETWEEN):
            self._round(only_rested=True)

    def finish(self, *, was_killed: bool) -> None:
        """Send what is left. What a killed process was still writing is left out: it may be half a file.

        Raises:
            StoreFailure: it cannot be sent.
        """
        self._closing.set()
        if self.is_alive():
            self.join()
        self._round(only_rested=was_killed)
        if self.problem:
            raise StoreFailure(self.problem)

    def _round(self, *, only_rested: bool) -> None:
        now = _stamps(self._folder)
        ready = [
            path
            for path, stamp in now.items()
            if self._sent.get(path) != stamp and (not only_rested or self._seen.get(path) == stamp)
        ]
        self._seen = now
        self.problem = ""
        try:
            in_parallel(self._send, ready)
        except StoreFailure as error:
            self.problem = str(error)

    def _send(self, path: str) -> None:
        full = os.path.join(self._folder, path)
        before = _stamp(full)
        if before is None:
            return
        # A copy of our own: what is sent is one state of the file, whatever happens to it meanwhile.
        frozen = os.path.join(
            os.path.dirname(self._folder), f".{os.path.basename(self._folder)}.{abs(hash(path))}.sending"
        )
        try:
            shutil.copyfile(full, frozen)
            if _stamp(full) != before:
                return
            self._objects.store(frozen, self._place.join(path))
        except (FileNotFoundError, PermissionError):  # gone, or not ours before the end
            return
        finally:
            if os.path.exists(frozen):
                os.unlink(frozen)
        self._sent[path] = before


def restore(folder: str, place: Place, objects: Objects) -> int:
    """Bring earlier checkpoints into an empty folder; returns how many files there were.

    Raises:
        StoreFailure: they cannot be fetched.
        Cancelled: the job is to end.
    """
    os.makedirs(folder, exist_ok=True)
    if not place.bucket and not os.path.isdir(place.key):
        return 0
    items = [item for item in objects.listing(place) if not item.path.endswith(".partial")]
    in_parallel(lambda item: objects.fetch(item, os.path.join(folder, item.path)), items)
    return len(items)


def _stamp(path: str) -> Stamp | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _stamps(folder: str) -> dict[str, Stamp]:
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            full = os.path.join(where, name)
            stamp = _stamp(full)
            if stamp is not None and os.path.isfile(full):
                found[os.path.relpath(full, folder)] = stamp
    return found
