"""Keeps a store in step with a folder while a job runs: checkpoints and intermediate output."""

from __future__ import annotations

import os
import select
import threading

from . import log, store
from .errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Stamp = tuple[int, int, int]

QUIET = 0.1  # seconds without a change after which what has changed is sent
LONGEST_WAIT = 2.0  # ... but a folder that never rests is sent this often


class Mirror:
    """Sends the files of a folder that changed, once they are complete.

    A file counts as complete when its writer has closed it or renamed it into place. A file that changes
    while it is sent is sent again. Deletions are not mirrored: an object store is where old checkpoints are
    kept.

    Args:
        folder: made if it is not there.
        uri: where to send it.
        purpose: for messages: "checkpoints".
    """

    def __init__(self, folder: str, uri: str, purpose: str) -> None:
        self.folder = folder
        self.uri = uri
        self.purpose = purpose
        os.makedirs(folder, exist_ok=True)
        self._sent: dict[str, Stamp] = dict(_stamps(folder))
        self._store: store.Store | None = None
        self._thread: threading.Thread | None = None
        self._wake_read, self._wake_write = os.pipe()
        self._watch = self._open_watch()

    def _open_watch(self) -> object:
        from . import inotify

        try:
            return inotify.Tree(self.folder)
        except OSError as error:
            log.warning(
                f"Cannot watch {self.folder} ({error}); the {self.purpose} go out when the script ends."
            )
            return None

    def forget(self) -> None:
        """Count nothing as sent: what lies in the folder now is new to the store."""
        self._sent.clear()

    def start(self) -> None:
        """Begin to watch and send, on a thread of its own."""
        self._thread = threading.Thread(target=self._run, name=f"trainyard-{self.purpose}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop watching and send all that is still to be sent.

        Raises:
            StoreError: something could not be sent.
        """
        os.close(self._wake_write)
        if self._thread is not None:
            self._thread.join()
        os.close(self._wake_read)
        if self._watch is not None:
            self._watch.close()  # type: ignore[attr-defined]
        self._send(path for path, _ in _stamps(self.folder))

    def _run(self) -> None:
        if self._watch is None:
            return
        from .inotify import Tree

        assert isinstance(self._watch, Tree)
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self._watch.descriptor, select.POLLIN)
        _Watcher(self._watch, poll, self._wake_read, self._send_quietly).run()

    def _send_quietly(self, paths: Iterable[str]) -> None:
        try:
            self._send(paths)
        except StoreError as error:
            log.warning(f"The {self.purpose} will be tried again: {error}")

    def _send(self, paths: Iterable[str]) -> None:
        changed = [path for path in paths if os.path.isfile(path) and self._sent.get(path) != _stamp(path)]
        if not changed:
            return
        if self._store is None:
            self._store = store.open_store(self.uri)
        store.in_parallel(self._send_one, changed, threads=8)

    def _send_one(self, path: str) -> None:
        assert self._store is not None
        key = store.join(store.split_uri(self.uri)[2], os.path.relpath(path, self.folder))
        for _ in range(3):
            stamp = _stamp(path)
            if stamp is None:
                return
            try:
                self._store.upload(path, key)
            except StoreError:
                if _stamp(path) is None:
                    return  # removed meanwhile, as rotating checkpoints are
                raise
            if _stamp(path) == stamp:
                self._sent[path] = stamp
                return


class _Watcher:
    """The loop of the mirror's thread: gather changes until it is quiet for a moment, then send them."""

    def __init__(
        self, tree: object, poll: select.poll, wake: int, send: Callable[[Iterable[str]], None]
    ) -> None:
        self._tree = tree
        self._poll = poll
        self._wake = wake
        self._send = send
        self._due: set[str] = set()

    def run(self) -> None:
        import time

        since = 0.0
        while True:
            timeout = None
            if self._due:
                timeout = max(0.0, min(QUIET, since + LONGEST_WAIT - time.monotonic()))
            events = self._poll.poll(None if timeout is None else timeout * 1000)
            if any(descriptor == self._wake for descriptor, _ in events):
                return
            if events:
                if not self._due:
                    since = time.monotonic()
                complete, growing = self._tree.changes()  # type: ignore[attr-defined]
                self._due = (self._due - growing) | complete
            if self._due and (not events or time.monotonic() >= since + LONGEST_WAIT):
                due, self._due = self._due, set()
                self._send(sorted(due))


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
