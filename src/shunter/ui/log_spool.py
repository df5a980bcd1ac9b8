"""Copies of logs that can be read from their beginning only, so that any part of them can be shown.

A thread follows such a log and appends it to an unnamed file in the state directory, which disappears with
the server, however that ends. Copies are bounded in number and in size, and none of their content is kept in
memory.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from shunter import paths
from shunter.errors import ShunterError, described
from shunter.redaction import redact_text
from shunter.runner import get_runner
from shunter.schedulers.responses import LogPart, LogQuery, LogRange, Stream
from shunter.schedulers.supervisor.log_ranges import LogRanges, NoFile, NoIndex
from shunter.schedulers.supervisor.log_reader import OutputFile

if TYPE_CHECKING:
    from shunter.ui.job_page import LogView

#: Bytes of one copy, and of all; what must stay free on the disk.
LARGEST, LARGEST_OF_ALL = 2 << 30, 4 << 30
LEAST_FREE = 1 << 30
MOST_COPIES = 16
#: Threads that copy, those too that have to wait for a line before they can end.
MOST_THREADS = 32
#: Seconds after which a copy that nobody has looked at is dropped, and after which a failed one is redone.
UNUSED_SECONDS, RETRY_SECONDS = 600.0, 5.0
#: A copy without new data for this many seconds is probably complete.
QUIET_SECONDS = 0.4

_threads = threading.BoundedSemaphore(MOST_THREADS)


class LogCopy(OutputFile):
    """The copy of one log, as far as it has been read.

    Attributes:
        is_over: whether no more will come.
        is_full: whether no more will come because the copy has reached its maximum size.
        problem: why the log could not be read to its end; "" otherwise.
    """

    def __init__(self, view: LogView) -> None:
        self._view = view
        folder = paths.state_dir()
        paths.make_private_dir(folder)
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - `drop` closes it
        self._written = 0
        self._lock = threading.Lock()  # so that its descriptor is not another file's meanwhile
        self._news_at = self.used_at = time.monotonic()
        self.is_over = False
        self.is_full = False
        self.problem = ""
        threading.Thread(target=self._run, daemon=True, name="ui-copy").start()

    def part(self, wanted: LogRange) -> LogPart:
        """Return a part of what has been read."""
        self.used_at = time.monotonic()
        wanted.is_complete = self.is_over  # first: the size is final then
        return LogRanges((self, NoFile()), NoIndex(), None).read(wanted)

    def has_ended(self) -> bool:
        """Tell whether it holds all that will ever be written."""
        return self.is_over and not self.problem

    def is_settled(self, over: bool) -> bool:
        """Tell whether it probably holds all that has been written so far; ``over`` if the job has ended."""
        patience = QUIET_SECONDS if self._written and not over else 5 * QUIET_SECONDS
        return self.has_ended() or time.monotonic() - self._news_at > patience

    def has_failed(self) -> bool:
        """Tell whether it is time to make it again."""
        return bool(self.problem) and not self.is_full and time.monotonic() - self._news_at > RETRY_SECONDS

    def drop(self) -> None:
        """Let the thread end with the next line, which frees the space on disk."""
        with self._lock:
            self._written = 0
            self._file.close()

    # ---- as a file

    def size(self) -> int:
        """Return how much has been read."""
        return self._written

    def read(self, count: int, offset: int) -> bytes:
        """Return at most this many bytes, from an offset."""
        with self._lock:
            count = min(count, self._written - offset)
            return b"" if count <= 0 else os.pread(self._file.fileno(), count, offset)

    def close(self) -> None:
        """Leave it open: others read it, too."""

    # ---- the thread

    def _run(self) -> None:
        view = self._view
        query = LogQuery(should_tail=True, streams=Stream(view.stream) if view.stream else None)
        try:
            with get_runner() as runner:
                for block in runner.log_blocks(view.handle, [(view.role, view.replica)], query):
                    with self._lock:
                        if self._file.closed:
                            break
                        self._append(block.data)
        except (ShunterError, OSError, ValueError, NotImplementedError) as error:
            self.problem = redact_text(described(error))
        finally:
            self._news_at = time.monotonic()
            self.is_over = True
            _threads.release()

    def _append(self, data: bytes) -> None:
        room = os.fstatvfs(self._file.fileno())
        if self._written + len(data) > LARGEST or room.f_bavail * room.f_frsize - len(data) < LEAST_FREE:
            self.is_full = True
            raise ValueError(f"only its first {self._written >> 20} MiB could be copied")
        rest = memoryview(data)
        while rest:
            count = self._file.write(rest)
            self._written += count
            rest = rest[count:]
        self._news_at = time.monotonic()


class LogCopies:
    """The copies of the logs that were looked at last. Used by one thread."""

    def __init__(self) -> None:
        self._copies: OrderedDict[LogView, LogCopy] = OrderedDict()

    def get(self, view: LogView) -> LogCopy | None:
        """Return the copy of a log, which may just have begun; None if there are too many."""
        now = time.monotonic()
        for other, copy in list(self._copies.items()):
            if now - copy.used_at > UNUSED_SECONDS or (other == view and copy.has_failed()):
                self._copies.pop(other).drop()
        found = self._copies.get(view)
        if found is None:
            if not _threads.acquire(blocking=False):
                return None
            try:
                found = self._copies[view] = LogCopy(view)
            except BaseException:
                _threads.release()
                raise
        self._copies.move_to_end(view)
        while len(self._copies) > 1 and (
            len(self._copies) > MOST_COPIES
            or sum(copy.size() for copy in self._copies.values()) > LARGEST_OF_ALL
        ):
            self._copies.popitem(last=False)[1].drop()
        return found

    def close(self) -> None:
        """Drop all."""
        while self._copies:
            self._copies.popitem()[1].drop()
