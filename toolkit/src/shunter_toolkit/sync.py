"""Copies a folder to a store while a job changes it: checkpoints and intermediate output."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Container, Iterable

from . import inotify, kernel, log
from .errors import StoreError
from .store import Place, Store, copy_content, in_parallel

Stamp = tuple[int, int, int]

QUIET = 0.1  # seconds after which a file that was closed, and has not changed since, is sent
QUIET_OF_OTHERS = 0.5  # the same for another program's file: by then we know if that program was killed
SCAN_INTERVAL = 0.5  # seconds, if the system does not report changes
LONGEST_WAIT = 2.0  # a file that is written again and again is sent this often, in seconds
THREADS = 8
_ATTEMPTS = 3  # to send a file that changes while it is sent


class Mirror:
    """Sends the files of a folder that changed, once they are complete.

    A file counts as complete when its writer has closed it or renamed it into place. A file that changes
    while it is sent is sent again. Deletions are not mirrored: an object store is where old checkpoints are
    kept.

    Args:
        folder: made if it is not there.
        target: where its files go.
        purpose: for messages: "checkpoints".
        store: sends them.
        is_alive: whether the program that writes there still runs, if it is not our own child. A file that it
            had open when it was killed may be incomplete, and is not sent.
        has_writer: whether a process has a file open for writing, if the system can tell.
        warn: called with messages about what is tried again.
    """

    def __init__(
        self,
        folder: str,
        target: Place,
        purpose: str,
        store: Store | None = None,
        is_alive: Callable[[], bool] | None = None,
        has_writer: Callable[[str], bool] = lambda path: False,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        self.folder = folder
        self.target = target
        self.purpose = purpose
        os.makedirs(folder, exist_ok=True)
        self._store = store or Store()
        self._is_alive = is_alive
        self._has_writer = has_writer
        self._warn = warn
        self._quiet = QUIET if is_alive is None else QUIET_OF_OTHERS
        self._longest_wait = LONGEST_WAIT if is_alive is None else float("inf")
        self._sent: dict[str, Stamp] = dict(_stamps(folder))
        self._complete: dict[str, Stamp] = dict(self._sent)
        self._seen: dict[str, Stamp] = {}
        self._thread: threading.Thread | None = None
        self._wake_read, self._wake_write = os.pipe()
        self._watch = self._open_watch()

    def _open_watch(self) -> inotify.Tree | None:
        try:
            return inotify.Tree(self.folder)
        except OSError as error:
            if kernel.IS_LINUX:
                self._warn(f"Cannot watch {self.folder} ({error}); it is scanned every {SCAN_INTERVAL} s.")
            return None

    def start(self) -> None:
        """Begin to watch and send, on another thread."""
        self._thread = threading.Thread(target=self._run, name=f"shunter-{self.purpose}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching; nothing more is sent."""
        if self._wake_write >= 0:
            os.close(self._wake_write)
            self._wake_write = -1
            if self._thread is not None:
                self._thread.join()
            os.close(self._wake_read)
            if self._watch is not None:
                while any(self._watch.changes()):
                    pass  # what was renamed last
                self._watch.close()

    def finish(self, *, was_killed: bool = False) -> None:
        """Stop watching and send all that is still to be sent. It may be called again after an error.

        Args:
            was_killed: send only what was complete before the program was killed, or renamed into place.

        Raises:
            StoreError: something could not be sent.
        """
        self.close()
        renamed = self._watch.renamed if self._watch is not None else set()
        self._send(
            path
            for path, stamp in _stamps(self.folder)
            if not was_killed or path in renamed or self._complete.get(path) == stamp
        )

    def _run(self) -> None:
        """Send each file when it has been complete for a moment."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if self._watch is not None:
            poll.register(self._watch.descriptor, select.POLLIN)
        due: dict[str, tuple[float, float]] = {}  # when to send it: at the latest, and if it does not change
        while True:
            soonest = min((min(times) for times in due.values()), default=None)
            timeout = None if soonest is None else max(0.0, soonest - time.monotonic())
            if self._watch is None:
                timeout = SCAN_INTERVAL if timeout is None else min(timeout, SCAN_INTERVAL)
            events = poll.poll(None if timeout is None else timeout * 1000)
            if any(descriptor == self._wake_read for descriptor, _ in events):
                return
            now = time.monotonic()
            if events or self._watch is None:
                complete, growing = self._scan(due) if self._watch is None else self._watch.changes()
                for path in growing:
                    due.pop(path, None)
                for path in complete:
                    latest = due[path][0] if path in due else now + self._longest_wait
                    due[path] = (latest, now + self._quiet)
            ready = [path for path, times in due.items() if min(times) <= now]
            if ready:
                for path in ready:
                    del due[path]
                if not self._send_complete(sorted(ready)):
                    return

    def _scan(self, due: Container[str]) -> tuple[set[str], set[str]]:
        """Return, as `inotify.Tree.changes` does, which files have changed, and which of them still do."""
        before, self._seen = self._seen, dict(_stamps(self.folder))
        changed = {path: stamp for path, stamp in self._seen.items() if self._sent.get(path) != stamp}
        growing = {path for path, stamp in changed.items() if before.get(path) != stamp}
        return {path for path in changed if path not in growing and path not in due}, growing

    def _send_complete(self, paths: list[str]) -> bool:
        """Send files that were closed; False if the program has ended: that closes incomplete ones too."""
        stamps = [(path, _stamp(path)) for path in paths if not self._has_writer(path)]
        if self._is_alive is not None and not self._is_alive():
            return False
        self._complete.update((path, stamp) for path, stamp in stamps if stamp is not None)
        try:
            self._send(path for path, _ in stamps)
        except (StoreError, OSError) as error:
            self._warn(f"The {self.purpose} will be tried again: {error}")
        return True

    def _send(self, paths: Iterable[str]) -> None:
        changed = [path for path in paths if os.path.isfile(path) and self._sent.get(path) != _stamp(path)]
        if changed:
            in_parallel(self._send_one, changed, threads=THREADS)

    def _send_one(self, path: str) -> None:
        place = self.target.join(os.path.relpath(path, self.folder))
        for _ in range(_ATTEMPTS):
            stamp = _stamp(path)
            if stamp is None:
                return
            try:
                is_sent = self._upload(path, stamp, place)
            except PermissionError:
                return  # not ours to read before the end
            except (StoreError, FileNotFoundError):
                if _stamp(path) is None:
                    return  # removed meanwhile, as rotating checkpoints are
                raise
            if is_sent and _stamp(path) == stamp:
                self._sent[path] = stamp
                return

    def _upload(self, path: str, stamp: Stamp, place: Place) -> bool:
        if self._is_alive is None:
            self._store.upload(path, place)
            return True
        # The program may be killed meanwhile: a copy, beside the folder, is one state of the file.
        name = f".{os.path.basename(self.folder)}.{abs(hash(path))}.sending"
        copy = os.path.join(os.path.dirname(self.folder), name)
        try:
            copy_content(path, copy)
            if _stamp(path) != stamp:
                return False
            self._store.upload(copy, place)
        finally:
            if os.path.exists(copy):
                os.unlink(copy)
        return True


def _stamp(path: str) -> Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _stamps(folder: str) -> Iterable[tuple[str, Stamp]]:
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            stamp = _stamp(path)
            if stamp is not None and os.path.isfile(path) and not path.endswith(".partial"):
                yield path, stamp
