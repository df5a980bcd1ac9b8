"""Reading one log stream: every event once, whatever the pages do.

CloudWatch Logs orders a stream by the times that its writer gave, and a token stands for a place in that
order. Late events with an earlier time lie before the token, so reading on would miss them. Now and then a
cursor therefore reads the last part of the stream again and compares it with what it remembers. It counts how
often each text was seen at each millisecond: GetLogEvents gives no ids, but events never disappear, so what
occurs more often than it was seen is new.

FilterLogEvents gives ids, and one call serves 100 streams. But it has no token that goes on at the end, so
each poll reads an overlap again: following 64 streams for two minutes took 3 times the events of GetLogEvents
(and a tenth of the calls). It cannot read backwards, so the last lines would still come from GetLogEvents,
without ids, and it needs a permission that users' policies may lack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from shunter.schedulers.aws.cloudwatch_calls import (
    CloudWatchEvent,
    LogCalls,
    MissingStreamError,
    Page,
    StaleTokenError,
)

#: How far back an ordinary search for late events goes, in milliseconds.
LATE_MS = 120_000
#: How many times a page that AWS repeats is requested again.
REPEATS = 5
#: The smallest page when only the last lines are wanted.
LEAST_LIMIT = 1000


class Seen:
    """How often each text was seen at each millisecond, for the newest events.

    Args:
        capacity: about how many events are remembered; more if they all have the same time.
        floor: events from this time on (ms) are remembered. It rises when older ones are forgotten.
    """

    def __init__(self, capacity: int, floor: int) -> None:
        self.floor = floor
        self._capacity = capacity
        self._counts: dict[int, dict[int, int]] = {}
        self._size = 0

    def add(self, event: CloudWatchEvent) -> int:
        """Remember an event; returns how often it has been seen."""
        counts = self._counts.setdefault(event.time, {})
        key = hash(event.message)
        count = counts[key] = counts.get(key, 0) + 1
        self._size += count == 1
        if self._size > self._capacity + self._capacity // 2:
            self._forget()
        return count

    def count(self, event: CloudWatchEvent) -> int:
        """Return how often an event has been seen."""
        return self._counts.get(event.time, {}).get(hash(event.message), 0)

    def _forget(self) -> None:
        times = sorted(self._counts)
        for time in times[:-1]:
            if self._size <= self._capacity:
                break
            self._size -= len(self._counts.pop(time))
            self.floor = time + 1

    def __len__(self) -> int:
        return self._size


class StreamCursor:
    """Reads one stream.

    Args:
        calls: makes the calls.
        stream: the stream's name.
        since, until: the wanted time, in milliseconds; ``until`` is excluded.
        limit: the most events of a page.
        capacity: events to remember.

    Attributes:
        exists: whether the stream has been found.
        ingested: the newest ingestion time of the events read, in milliseconds.
        scan_started: when the present scan began, by the monotonic clock.
        scan_is_full: whether it began as far back as is remembered.
        scan_has_news: whether it found new events.
    """

    def __init__(
        self, calls: LogCalls, stream: str, since: int, until: int | None, limit: int, capacity: int
    ) -> None:
        self.stream = stream
        self.exists = False
        self.ingested = 0
        self.scan_started = 0.0
        self.scan_is_full = True
        self.scan_has_news = False
        self._calls = calls
        self._since = since
        self._until = until
        self._limit = limit
        self._capacity = capacity
        self._seen = Seen(capacity, since)
        self._newest = -1
        self._start = since
        self._token = ""
        self._tokens: deque[str] = deque(maxlen=8)
        self._compared_with: Seen | None = None
        self._compare_until = -1
        self._repeats = 0
        self._stale = 0

    def begin(self, *, full: bool) -> None:
        """Begin a scan for late events, as far back as is remembered or `LATE_MS` ago."""
        start = self._seen.floor
        if not full:
            start = max(start, min(self._newest, int(self._calls.now() * 1000)) - LATE_MS)
        self.scan_started, self.scan_is_full, self.scan_has_news = self._calls.clock.monotonic(), full, False
        self._start = start
        self._token = ""
        self._tokens.clear()
        self._compared_with = Seen(self._capacity, start) if self._newest >= start else None
        self._compare_until = self._newest

    def read(self) -> tuple[list[CloudWatchEvent], bool]:
        """Read a page; returns its new events, and whether the end has been reached."""
        try:
            page = self._page(self._start, self._token, forward=True)
        except MissingStreamError:
            return [], True
        except StaleTokenError as error:
            self._note_stale(error)
            self.begin(full=False)
            return [], False
        if self._token:
            self._stale = 0
        if page.events and page.forward in self._tokens:
            # An answer to an earlier request: the events have been read.
            self._repeats += 1
            return [], self._repeats % REPEATS == 0
        self._repeats = 0
        is_end = page.forward == self._token
        if not is_end:
            self._tokens.append(page.forward)
        self._token = page.forward
        news = [event for event in page.events if self._is_wanted(event) and self._is_new(event)]
        self.scan_has_news |= bool(news)
        return news, is_end

    def read_back(self, count: int, lines_of: Callable[[CloudWatchEvent], list[bytes]]) -> list[bytes]:
        """Return the last ``count`` wanted lines, as ``lines_of`` gives them; `begin` goes on after them."""
        while True:
            try:
                return self._read_back(count, lines_of)
            except MissingStreamError:
                return []
            except StaleTokenError as error:
                self._note_stale(error)

    def _note_stale(self, error: StaleTokenError) -> None:
        """Count an expired token; tokens that always expire are an error."""
        self._stale += 1
        if self._stale > REPEATS:
            raise self._calls.refusal(error) from error

    def _read_back(self, count: int, lines_of: Callable[[CloudWatchEvent], list[bytes]]) -> list[bytes]:
        self.scan_started, self.scan_is_full, self.scan_has_news = self._calls.clock.monotonic(), True, True
        lines: deque[bytes] = deque()
        known: list[CloudWatchEvent] = []
        token, repeats, is_beginning, is_whole = "", 0, False, True
        limit = min(self._limit, max(LEAST_LIMIT, 2 * count))
        while True:
            page = self._page(self._since, token, forward=False, limit=limit)
            if page.events and page.backward == token and repeats < REPEATS:
                repeats += 1
                continue
            is_beginning = page.backward == token
            token = page.backward
            for event in reversed(page.events):
                if not self._is_wanted(event):
                    continue
                if len(known) < self._capacity:
                    known.append(event)
                else:
                    is_whole = False
                if len(lines) < count:
                    lines.extendleft(reversed(lines_of(event)))
            # The oldest millisecond may go on in the page before.
            has_margin = bool(known) and known[-1].time < known[0].time
            if is_beginning or (len(lines) >= count and (has_margin or len(known) >= self._capacity)):
                break
        self._remember(known, is_whole=is_beginning and is_whole)
        return list(lines)[-count:] if count else []

    def _remember(self, newest_first: list[CloudWatchEvent], *, is_whole: bool) -> None:
        """Remember these events, the newest of the stream, and treat all before them as read."""
        oldest = newest_first[-1].time if newest_first else self._since
        floor = self._since if is_whole else oldest + 1
        self._seen = Seen(self._capacity, floor)
        for event in reversed(newest_first):
            if event.time >= floor:
                self._seen.add(event)
        if newest_first:
            self._newest = newest_first[0].time

    def _page(self, start: int, token: str, *, forward: bool, limit: int | None = None) -> Page:
        page = self._calls.page(
            self.stream,
            start=start,
            end=self._until,
            limit=limit or self._limit,
            token=token,
            forward=forward,
        )
        self.exists = True
        self.ingested = max(self.ingested, page.ingested)
        return page

    def _is_wanted(self, event: CloudWatchEvent) -> bool:
        return event.time >= self._since and (self._until is None or event.time < self._until)

    def _is_new(self, event: CloudWatchEvent) -> bool:
        """Tell whether an event has not been returned before, and remember it."""
        if self._compared_with is not None and event.time <= self._compare_until:
            if event.time < self._seen.floor:
                return False
            if self._compared_with.add(event) <= self._seen.count(event):
                return False
        else:
            self._compared_with = None
            if event.time < self._newest and self._seen.count(event):
                return False  # out of order, so from a page that was given before
        self._seen.add(event)
        self._newest = max(self._newest, event.time)
        return True
