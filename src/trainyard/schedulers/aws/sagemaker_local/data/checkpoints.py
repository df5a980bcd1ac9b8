"""Folders that are kept in step with a store while a job runs: checkpoints."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable

from trainyard import system
from trainyard.schedulers.aws.sagemaker_local.data.objects import Objects, Place, StoreFailure, in_parallel

Stamp = tuple[int, int, int]
SECONDS_BETWEEN = 0.5


class Mirror(threading.Thread):
    """Sends the files of a folder once they are complete. Deletions are not mirrored, as on the service.

    A file is complete when nobody has it open for writing, and it was found so twice while the program ran:
    what was open when the program was killed may be half a file.

    Args:
        folder: the folder.
        place: where its files go.
        objects: the store.
        is_alive: tells whether the program that writes there still runs.
    """

    def __init__(self, folder: str, place: Place, objects: Objects, is_alive: Callable[[], bool]) -> None:
        super().__init__(name="checkpoints", daemon=True)
        self._folder = folder
        self._place = place
        self._objects = objects
        self._is_alive = is_alive
        self._sent = _stamps(folder)
        self._complete: dict[str, Stamp] = dict(self._sent)
        self._closing = threading.Event()
        #: Why what changed last could not be sent; "" if it could.
        self.problem = ""

    def run(self) -> None:
        """Send what changes until `finish`."""
        while not self._closing.wait(SECONDS_BETWEEN):
            now = _stamps(self._folder)
            complete = {
                path: stamp
                for path, stamp in now.items()
                if self._sent.get(path) == stamp or not system.has_writer(os.path.join(self._folder, path))
            }
            if not self._is_alive():
                return
            rested = [path for path, stamp in complete.items() if self._complete.get(path) == stamp]
            self._complete = complete
            self._send_all(rested, now)

    def finish(self, *, was_killed: bool) -> None:
        """Send what is left; of a killed program, what was complete before.

        Raises:
            StoreFailure: it cannot be sent.
        """
        self._closing.set()
        if self.is_alive():
            self.join()
        now = _stamps(self._folder)
        paths = [path for path, stamp in now.items() if not was_killed or self._complete.get(path) == stamp]
        try:
            self._objects.await_room(lambda: self._send_changed(paths, now), may_cancel=False)
        except OSError as error:
            raise StoreFailure(f"cannot copy {error.filename}: {error.strerror}") from error

    def _send_all(self, paths: list[str], now: dict[str, Stamp]) -> None:
        """Send what has changed; what cannot be sent is tried again with the next change, or at the end."""
        self.problem = ""
        try:
            self._send_changed(paths, now)
        except (StoreFailure, OSError) as error:
            self.problem = str(error)

    def _send_changed(self, paths: list[str], now: dict[str, Stamp]) -> None:
        in_parallel(self._send, [path for path in paths if self._sent.get(path) != now[path]])

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
    # those of another job may lie beside it, in a folder whose name begins with its name
    inside = Place(place.bucket, f"{place.key.rstrip('/')}/") if place.bucket and place.key else place
    items = [item for item in objects.listing(inside) if not item.path.endswith(".partial")]
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
