"""The log of one replica: the streams of its attempts one after the other, and when to look at them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trainyard.backoff import Clock
from trainyard.schedulers.aws.logcalls import Event, LogCalls, MissingGroupError
from trainyard.schedulers.aws.logcursor import StreamCursor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard.schedulers.aws.cloudwatch import Attempt

#: How soon a stream that had something new is looked at again (s), and how late one that is silent.
FIRST_LOOK = 1.0
LONGEST_LOOK = 5.0
#: So many silent streams are looked at per second, if they are many.
SILENT_LOOKS_PER_SECOND = 4.0
#: A stream that Live Tail watches, and that is silent, is looked at this late (s).
WATCHED_LOOK = 60.0
#: How often (s) a stream is looked through for what came late, if it grows, and if it does not.
SWEEP = 20.0
SILENT_SWEEP = 60.0
#: Agents send what they hold every few seconds; so long after the end (s) nothing is to be expected any more,
#: unless AWS itself says that there is something; and so long after it not even then.
SETTLE = 6.0
LATE = 60.0
#: A stream that is not there so long after the end (s) will never be.
MISSING = 20.0


class ReplicaLog:
    """Reads the streams of one replica's attempts.

    Args:
        calls: makes the calls.
        clock: the time.
        since, until: the time that is wanted, in milliseconds since the epoch.
        limit: events of a page.
        capacity: events to remember.
        is_follower: whether to go on until the replica has ended.
        is_open: whether all that comes in is wanted, whatever its time.
        replicas: how many are read together.

    Attributes:
        due: when to look next, by the monotonic clock.
        is_done: whether nothing more will come.
        is_over: whether the replica has ended.
        is_watched: whether somebody else says when there is something to see.
    """

    def __init__(
        self,
        calls: LogCalls,
        clock: Clock,
        *,
        since: int,
        until: int | None,
        limit: int,
        capacity: int,
        is_follower: bool,
        is_open: bool,
        replicas: int,
    ) -> None:
        self.due = 0.0
        self.is_done = False
        self.is_over = False
        self.is_watched = False
        self._calls = calls
        self._clock = clock
        self._span = (since, until, limit, capacity)
        self._is_follower = is_follower
        self._is_open = is_open
        self._longest = max(LONGEST_LOOK, replicas / SILENT_LOOKS_PER_SECOND)
        self._interval = FIRST_LOOK
        self._ends: dict[str, float | None] = {}
        self._known_over: dict[str, float] = {}
        self._index = 0
        self._cursor: StreamCursor | None = None
        self._next_scan: bool | None = None
        self._sweep_due = 0.0
        self._had_news = False

    @property
    def stream(self) -> str:
        """Name of the stream that is read now, if it is there."""
        return self._cursor.stream if self._cursor is not None and self._cursor.exists else ""

    def update(self, attempts: Sequence[Attempt], over: bool) -> bool:
        """Take in what is known of the attempts; returns whether that is new."""
        before = (dict(self._ends), self.is_over)
        for attempt in attempts:
            self._ends[attempt.stream] = attempt.ended
        self.is_over |= over
        names = list(self._ends)
        for i, name in enumerate(names):
            if self.is_over or i < len(names) - 1 or self._ends[name] is not None:
                self._known_over.setdefault(name, self._clock.monotonic())
        is_new = before != (self._ends, self.is_over)
        if is_new:
            self.due = 0.0
        return is_new

    def rouse(self) -> None:
        """Look at once, and soon again if what is said to be there cannot be seen yet."""
        self.due = 0.0
        self._interval = FIRST_LOOK

    # ---- reading

    def available(self) -> Iterator[list[Event]]:
        """Yield pages of what is new, until there is a reason to wait."""
        while not self.is_done and self.due <= self._clock.monotonic():
            if page := self.step():
                yield page

    def step(self) -> list[Event]:
        """Make one call, and decide when the next is due. Returns what is new."""
        cursor = self._open()
        if cursor is None:
            self._wait_for_attempt()
            return []
        if self._next_scan is not None:
            cursor.begin(full=self._next_scan)
            self._next_scan = None
        try:
            events, is_end = cursor.read()
        except MissingGroupError:
            if self._ended_at(cursor.stream) is not None:
                raise
            events, is_end = [], True
        if events:
            self._interval = FIRST_LOOK
            self._had_news = True
        if not is_end:
            self.due = self._clock.monotonic()
        elif (ended := self._ended_at(cursor.stream)) is not None:
            self._settle(cursor, ended)
        elif self._is_follower:
            self._look_later(cursor)
        else:
            self.is_done = True
        return events

    def read_back(self, count: int, lines_of: Callable[[Event], list[bytes]]) -> list[bytes]:
        """Return the last lines of all attempts; reading goes on after them."""
        lines: list[bytes] = []
        names = list(self._ends)
        self._index = max(0, len(names) - 1)
        for name in reversed(names):
            cursor = self._new_cursor(name)
            try:
                lines = cursor.read_back(count - len(lines), lines_of) + lines
            except MissingGroupError:
                if self._ended_at(name) is not None:
                    raise
            self._cursor = self._cursor or cursor
            if len(lines) >= count:
                break
        cursor_or_none = self._cursor
        if cursor_or_none is None:
            self._wait_for_attempt()
        elif (ended := self._ended_at(cursor_or_none.stream)) is not None:
            self._settle(cursor_or_none, ended)
        elif self._is_follower:
            self._next_scan = True
            self.due = self._clock.monotonic()
        else:
            self.is_done = True
        return lines

    # ---- what comes next

    def _open(self) -> StreamCursor | None:
        """Return the cursor of the attempt that is to be read; None if there is none yet."""
        names = list(self._ends)
        if self._cursor is None and self._index < len(names):
            self._cursor = self._new_cursor(names[self._index])
            self._next_scan = True
            self._sweep_due = self._clock.monotonic() + SWEEP
        return self._cursor

    def _new_cursor(self, name: str) -> StreamCursor:
        since, until, limit, capacity = self._span
        return StreamCursor(self._calls, name, since, until, limit, capacity)

    def _ended_at(self, name: str) -> float | None:
        """Return since when nothing is written to a stream (seconds since the epoch); None if it still is."""
        until = self._span[1]
        if self._is_follower and until is not None and self._calls.now() * 1000 >= until:
            return until / 1000
        if name not in self._known_over:
            return None
        ended = self._ends[name]
        if ended is None and not self._is_follower:
            return 0.0  # long ago, as far as one knows
        if ended is None:
            return self._calls.now() - (self._clock.monotonic() - self._known_over[name])
        return ended

    def _wait_for_attempt(self) -> None:
        until = self._span[1]
        is_past = until is not None and self._calls.now() * 1000 >= until
        if self.is_over or is_past or not self._is_follower:
            self.is_done = True
        else:
            self.due = float("inf") if until is None else self._clock.monotonic() + LONGEST_LOOK

    def _settle(self, cursor: StreamCursor, ended: float) -> None:
        """At the end of a stream that has ended: go on to the next, or look whether more came in."""
        age = self._calls.now() - ended
        looked = age - (self._clock.monotonic() - cursor.scan_started) if cursor.scan_is_full else 0.0
        if not cursor.exists:
            is_settled = age >= MISSING
        elif looked >= LATE:
            is_settled = True
        elif looked >= SETTLE and not cursor.scan_has_news:
            # Of a stream that has nothing from `since` on, what came in before tells nothing.
            is_older = self._span[0] > 0 and not cursor.ingested
            is_settled = age >= LATE or not self._is_open or is_older or not self._is_more(cursor)
        else:
            is_settled = False
        if is_settled:
            self._index += 1
            self._cursor = None
            self._interval = FIRST_LOOK
            self.due = self._clock.monotonic()
            return
        self._next_scan = True
        self.due = self._clock.monotonic() + max(2 * FIRST_LOOK, SETTLE - age)

    def _is_more(self, cursor: StreamCursor) -> bool:
        """Tell whether AWS knows of events that have not been read."""
        return self._calls.last_ingestion(cursor.stream) > cursor.ingested

    def _look_later(self, cursor: StreamCursor) -> None:
        """At the end of a stream that may grow: say when to look again, and how far back."""
        now = self._clock.monotonic()
        longest = WATCHED_LOOK if self.is_watched else self._longest
        self.due = now + min(self._interval, longest)
        self._interval = min(self._interval * 1.6, longest)
        if now >= self._sweep_due and cursor.exists:
            self._next_scan = False
            self._sweep_due = now + (SWEEP if self._had_news else SILENT_SWEEP)
            self._had_news = False
