"""Reading parts of logs for the pages: by the scheduler where it has ranges, elsewhere from a copy.

Also searching them: part after part, for a short time with each request.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shunter.errors import BackendError, UsageError
from shunter.runner import Runner
from shunter.schedulers.lines import LineSearch, compile_regex, end_of
from shunter.schedulers.responses import LogPart, LogQuery, LogRange, Stream
from shunter.ui.log_spool import LogCopies, LogCopy
from shunter.ui.runner_pool import RunnerPool

if TYPE_CHECKING:
    from shunter.ui.job_page import LogView

#: Bytes of a log that are shown at once; lines while a log is being copied.
CHUNK, LAST_LINES, LAST_BYTES = 64 << 10, 1000, 1 << 20
#: Bytes that are searched at a time, and seconds that one request searches.
SEARCHED, SEARCH_SECONDS = 256 << 10, 2.0
#: Seconds that reading a log may take, and that a copy is waited for.
LOG_PATIENCE, COPY_PATIENCE = 15.0, 1.5
LONGEST_EXPRESSION = 500


@dataclass
class FoundPart:
    """A part of a log."""

    part: LogPart | None  # None where the log is still being copied and its end is wanted
    is_over: bool  # whether nothing more will be written
    copy: LogCopy | None = None  # the copy that it comes from, if there is one


class SearchResult:
    """The result of a search so far.

    Attributes:
        part: the first part in which lines match; None without one so far.
        matching: its lines that match.
        reached: the position up to which was searched.
        is_backward: whether the search goes towards the beginning of the log.
        searched, size: bytes between there and where such a search begins, and of the whole log.
        is_done: whether the log has been searched to its end, or its beginning.
    """

    def __init__(self, reached: str, *, is_backward: bool = False) -> None:
        self.part: LogPart | None = None
        self.matching = b""
        self.reached = reached
        self.is_backward = is_backward
        self.searched = self.size = 0
        self.is_done = False

    def next_range(self, count: int) -> LogRange:
        """Return the range that is to be searched next."""
        if self.is_backward:
            return LogRange(count, end=self.reached)
        return LogRange(count, start=self.reached, at=None if self.reached else 0)

    def passed(self, part: LogPart) -> None:
        """Note that a part was searched."""
        end = part.before + len(part.data)
        self.reached = part.start if self.is_backward else part.end
        self.searched = part.size - part.before if self.is_backward else end
        self.size = part.size
        self.is_done = self.is_backward and part.before == 0


class LogParts:
    """Reads parts of logs."""

    def __init__(self, pool: RunnerPool) -> None:
        self._pool = pool
        self._copies = LogCopies()
        self._without_ranges: set[str] = set()

    def close(self) -> None:
        """Drop the copies."""
        self._copies.close()

    async def read(self, view: LogView, wanted: LogRange, *, over: bool, waits: bool = True) -> FoundPart:
        """Return a part of a log.

        Args:
            over: whether the job has ended.
            waits: whether to wait until enough is copied; if not, the end of the copy so far is returned.

        Raises:
            ShunterError: it cannot be read.
        """
        wanted.is_complete = over
        wanted.streams = Stream(view.stream) if view.stream else None
        lane = view.handle.partition("://")[0]
        if lane not in self._without_ranges:
            part = await self._pool.ask(
                lane,
                lambda runner: runner.log_part(view.handle, view.role, view.replica, wanted),
                LOG_PATIENCE,
            )
            if part is not None:
                return FoundPart(part, over)
            self._without_ranges.add(lane)
        return await self._read_copy(view, wanted, over, waits)

    async def _read_copy(self, view: LogView, wanted: LogRange, over: bool, waits: bool) -> FoundPart:
        copy = self._copies.get(view)
        if copy is None:
            raise BackendError("too many logs are followed already", hint="Close some pages.")
        is_end = not (wanted.start or wanted.end or wanted.at is not None)
        until = time.monotonic() + COPY_PATIENCE
        while waits and not copy.is_over and time.monotonic() < until:
            if copy.is_settled(over) if is_end else copy.size():
                break
            await self._pool.pause(0.05)
        if copy.problem and not copy.size():
            raise BackendError(copy.problem)
        is_over = copy.is_over
        if is_end and waits and (copy.problem or not copy.is_settled(over)):
            return FoundPart(None, False, copy)
        return FoundPart(copy.part(wanted), is_over and not copy.problem, copy)

    async def last_lines(self, view: LogView) -> bytes:
        """Return the last lines of a log, however long it takes to copy it."""

        def read_end(runner: Runner) -> bytes:
            stream = Stream(view.stream) if view.stream else None
            query = LogQuery(last=LAST_LINES, streams=stream, most_bytes=LAST_BYTES)
            return end_of(runner.log_blocks(view.handle, [(view.role, view.replica)], query), LAST_BYTES)

        return await self._pool.ask(view.handle.partition("://")[0], read_end, LOG_PATIENCE)

    async def search(
        self, view: LogView, regex: str, place: str, *, over: bool, is_backward: bool = False
    ) -> SearchResult:
        """Search a log from a position on, for a while.

        Args:
            place: where to begin; "" for the beginning, or for the end of a search that goes back.
            over: whether the job has ended.
            is_backward: whether to search towards the beginning.

        Raises:
            UsageError: the expression is not valid.
        """
        if not regex or len(regex) > LONGEST_EXPRESSION:
            raise UsageError("there is nothing to search for" if not regex else "the expression is too long")
        compile_regex(regex)
        search = LineSearch(regex)
        until = time.monotonic() + SEARCH_SECONDS
        result = SearchResult(place, is_backward=is_backward)
        while time.monotonic() < until and not result.is_done:
            found = await self.read(view, result.next_range(SEARCHED), over=over)
            part = found.part
            if part is None or not part.data:
                result.is_done = found.copy is None or found.copy.is_over
                break
            if await self._select(search, part.data):
                result.reached = part.end if is_backward else part.start
                return await self._narrowed(view, search, result, over=over)
            result.passed(part)
        return result

    async def _narrowed(
        self, view: LogView, search: LineSearch, result: SearchResult, *, over: bool
    ) -> SearchResult:
        """Find what is shown at once in a longer part that matches."""
        while True:
            part = (await self.read(view, result.next_range(CHUNK), over=over)).part
            if part is None or not part.data:  # it has gone meanwhile
                return result
            result.passed(part)
            result.matching = await self._select(search, part.data)
            if result.matching:
                result.part = part
                return result

    async def _select(self, search: LineSearch, data: bytes) -> bytes:
        return await self._pool.ask("the search", lambda _: search.select(data), LOG_PATIENCE)
