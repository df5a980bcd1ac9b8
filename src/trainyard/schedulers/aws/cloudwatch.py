"""Reading the logs of jobs from CloudWatch Logs: what is there, and what comes until the job has ended.

One reader serves all replicas of a job, and makes no more calls per second than `CALLS_PER_SECOND`, however
many they are (AWS allows an account some 25 GetLogEvents a second in a region). Knows nothing of what runs
the job: a `JobLogs` says which streams there are and whether more will come.

What AWS keeps is not quite what was written, and nothing can be done about it here: the text of an event is
never empty, so agents leave empty lines out, and they cut lines that are too long into several events.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections import deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Protocol, TypeVar

from trainyard.backoff import Clock
from trainyard.schedulers.aws.cloudwatch_calls import (
    LogCalls,
    LogEvent,
    MissingGroupError,
    RateLimit,
    ReadingStoppedError,
    untranslated,
    verdict,
)
from trainyard.schedulers.aws.cloudwatch_stream import StreamCursor
from trainyard.schedulers.base import LogBlock, LogQuery, Stream
from trainyard.schedulers.lines import compile_regex, iter_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.schedulers.aws.cloudwatch_live_tail import LiveTail

Key = tuple[str, int]

CALLS_PER_SECOND = 8.0
BURST = 8
#: Events held for all streams together: of pages that are read ahead, and of those remembered.
PAGES_OF_ALL = 100_000
REMEMBERED_OF_ALL = 200_000
#: Threads that read pages ahead.
WORKERS = 8
#: How often the job is asked for its streams and its state, in seconds: the first time, and at last.
FIRST_REFRESH = 2.0
LONGEST_REFRESH = 10.0
#: For so long (s) the job may be out of sight before following ends with the error.
REFRESH_PATIENCE = 600.0
#: A block is passed on when it has so many bytes.
BLOCK_BYTES = 256 << 10
#: Clocks may differ by so many seconds.
SKEW = 900.0


class AttemptLog(namedtuple("AttemptLog", "stream ended", defaults=(None,))):
    """One run of a replica: its log stream, and when it ended (seconds since the epoch) if that is known."""

    __slots__ = ()
    stream: str
    ended: float | None


class ReplicaAttempts(namedtuple("ReplicaAttempts", "attempts over")):
    """The runs of a replica so far, oldest first, and whether no more will come and the last has ended."""

    __slots__ = ()
    attempts: Sequence[AttemptLog]
    over: bool


class JobLogs(Protocol):
    """Where the logs of a job's replicas are. One call serves all of them."""

    def refresh(self) -> Mapping[Key, ReplicaAttempts]:
        """Ask the backend, and return the runs of every replica that is wanted, by its role and index."""


def check_stream(stream: Stream | None, scheduler: str) -> None:
    """Refuse to tell stdout and stderr apart: CloudWatch has both in one.

    Raises:
        ValueError: another stream than ``COMBINED`` is asked for.
    """
    if stream not in (None, Stream.COMBINED):
        raise ValueError(
            f"{scheduler} keeps stdout and stderr in one log, in the order in which they were written: "
            f"{stream} alone cannot be read, only {Stream.COMBINED}"
        )


class LogStreams:
    """Reads streams of one log group. All readers of one object share the bound on calls.

    Args:
        client: boto3's client of the service ``logs``. It need not retry: all calls are repeated here.
        group: name of the log group.
        live: whether Live Tail may be used where the account has it, to learn at once of new lines. AWS
            charges for it by the minute.
        renew: makes another client when the credentials have expired; None if that cannot help.
        translate: makes an error of ours from an error of botocore and the name of the operation.
        calls_per_second: the bound.
        clock: the time.
    """

    def __init__(
        self,
        client: Any,
        group: str,
        *,
        live: bool = False,
        renew: Callable[[], Any] | None = None,
        translate: Callable[[Exception, str], Exception] = untranslated,
        calls_per_second: float = CALLS_PER_SECOND,
        clock: Clock | None = None,
    ) -> None:
        self.group = group
        self._client = client
        self._live = live
        self._renew = renew
        self._translate = translate
        self._clock = clock or Clock()
        self._pace = RateLimit(calls_per_second, BURST, self._clock)

    def read(self, job: JobLogs, query: LogQuery, scheduler: str = "CloudWatch") -> Iterator[LogBlock]:
        """Return the lines of a job's replicas.

        What is there comes about in the order in which it was written, each replica's attempts one after the
        other. Of a job that has just ended, and when following, it goes on until all has come in.

        Args:
            job: tells the replicas' streams.
            query: which lines.
            scheduler: how messages call what keeps the logs.

        Raises:
            ValueError: another stream than ``COMBINED`` is asked for.
            UsageError: the regular expression is none.
            BackendError: CloudWatch refuses, or has been out of reach for too long (from the iterator).
        """
        check_stream(query.streams, scheduler)
        lines_of = _line_filter(query)
        calls = LogCalls(self._client, self.group, self._pace, self._clock, self._renew, self._translate)
        return _Reading(job, query, lines_of, calls, self._clock, live=self._live).blocks()

    def find(self, prefix: str) -> list[str]:
        """Return the names of all streams that begin with this, in order; none if there is no such group.

        Raises:
            BackendError: CloudWatch refuses, or has been out of reach for too long.
        """
        calls = LogCalls(self._client, self.group, self._pace, self._clock, self._renew, self._translate)
        try:
            return calls.stream_names(prefix)
        except MissingGroupError:
            return []


def milliseconds(time: datetime) -> int:
    """Return the first whole millisecond since the epoch that does not come before a time."""
    return -((datetime(1970, 1, 1, tzinfo=UTC) - time.astimezone(UTC)) // timedelta(milliseconds=1))


def _line_filter(query: LogQuery) -> Callable[[LogEvent], list[bytes]]:
    """Return a function that makes of an event the lines that are wanted."""
    if query.regex is None:
        return lambda event: list(iter_lines(_bytes_of(event)))
    search = compile_regex(query.regex).search

    def matching(event: LogEvent) -> list[bytes]:
        lines = iter_lines(_bytes_of(event))
        return [line for line in lines if search(line.decode("utf-8", "replace").rstrip("\r\n"))]

    return matching


def _bytes_of(event: LogEvent) -> bytes:
    text = event.message if event.message.endswith("\n") else event.message + "\n"
    return text.encode("utf-8", "surrogatepass")


class _Reading:
    """One reading of a job's logs, from its first call to its last."""

    def __init__(
        self,
        job: JobLogs,
        query: LogQuery,
        lines_of: Callable[[LogEvent], list[bytes]],
        calls: LogCalls,
        clock: Clock,
        *,
        live: bool,
    ) -> None:
        self._job = job
        self._query = query
        self._lines_of = lines_of
        self._calls = calls
        self._clock = clock
        self._wants_live = live and query.should_tail
        self._live: LiveTail | None = None
        self._logs: dict[Key, ReplicaFollower] = {}
        self._tails: dict[Key, deque[bytes]] = {}
        self._refresh_due = 0.0
        self._refresh_delay = FIRST_REFRESH
        self._refresh_failures = calls.backoff(REFRESH_PATIENCE)

    def blocks(self) -> Iterator[LogBlock]:
        """Yield everything."""
        workers = Workers()
        try:
            self._begin()
            workers.start(min(WORKERS, len(self._logs)))
            if self._query.last is None:
                yield from self._history(workers)
            else:
                yield from self._last(workers, self._query.last)
            yield from self._follow()
            for (role, replica), lines in self._tails.items():
                if lines:
                    yield LogBlock(role, replica, b"".join(lines))
        except MissingGroupError as error:
            raise self._calls.no_group() from error
        except ReadingStoppedError:  # only a reader that was closed stops its calls
            return
        finally:
            self._calls.stop.set()
            workers.close()
            if self._live is not None:
                self._live.close()

    # ---- what is there

    def _begin(self) -> None:
        found = self._job.refresh()
        count = max(1, len(found))
        since = max(0, milliseconds(self._query.since)) if self._query.since else 0
        until = max(0, milliseconds(self._query.until)) if self._query.until else None
        is_follower = self._query.should_tail
        for key in found:
            end = until
            if not is_follower and end is None:
                # Without it, AWS says, reading may never come to an end where much is written.
                end = int((self._clock.time() + SKEW) * 1000)
            self._logs[key] = ReplicaFollower(
                self._calls,
                self._clock,
                since=since,
                until=end,
                limit=min(10_000, max(1_000, PAGES_OF_ALL // count)),
                capacity=min(20_000, max(2_000, REMEMBERED_OF_ALL // count)),
                is_follower=is_follower,
                is_open=until is None,
                replicas=count,
            )
        self._take(found)
        self._schedule_refresh(changed=True)

    def _history(self, workers: Workers) -> Iterator[LogBlock]:
        """Yield what is there, merged by time. Pages are read ahead, one of each replica."""

        def events(key: Key, pages: Iterator[list[LogEvent]]) -> Iterator[tuple[int, Key, LogEvent]]:
            newest = 0
            for page in pages:
                for event in page:
                    newest = max(newest, event.time)
                    yield newest, key, event

        streams = [events(key, ahead(workers, log.available())) for key, log in self._logs.items()]
        merged: Iterable[tuple[int, Key, LogEvent]]
        merged = streams[0] if len(streams) == 1 else heapq.merge(*streams, key=lambda item: item[0])
        for key, items in groupby(merged, key=lambda item: item[1]):
            yield from self._block(key, (event for _, _, event in items))

    def _last(self, workers: Workers, count: int) -> Iterator[LogBlock]:
        """Yield the last lines of each replica; or keep them, if more may have to be seen first."""
        if count == 0 and not self._query.should_tail:
            for log in self._logs.values():
                log.is_done = True
            return
        futures = {
            key: workers.submit(log.read_back, count, self._lines_of) for key, log in self._logs.items()
        }
        for key, future in futures.items():
            lines = future.result()
            if not self._query.should_tail:
                self._tails[key] = deque(lines, maxlen=count)
            elif lines:
                yield LogBlock(*key, b"".join(lines))

    # ---- what comes

    def _follow(self) -> Iterator[LogBlock]:
        """Yield what comes, until each replica is done."""
        while waiting := {key: log for key, log in self._logs.items() if not log.is_done}:
            now = self._clock.monotonic()
            if self._query.should_tail and now >= self._refresh_due:
                self._refresh()
                continue
            self._listen(waiting)
            key, log = min(waiting.items(), key=lambda item: item[1].due)
            if log.due > now:
                until = min(log.due, self._refresh_due) if self._query.should_tail else log.due
                self._pause(until - now)
                continue
            yield from self._block(key, log.step())

    def _pause(self, seconds: float) -> None:
        if self._live is None:
            self._clock.wait(self._calls.stop, seconds)
            return
        self._clock.wait(self._live.changed, seconds)

    def _listen(self, waiting: Mapping[Key, ReplicaFollower]) -> None:
        """Keep Live Tail up, and look at once where it has seen something."""
        if not self._wants_live:
            return
        if self._live is None:
            from trainyard.schedulers.aws.cloudwatch_live_tail import LiveTail

            self._live = LiveTail(self._calls, self._clock)
        self._live.watch({log.stream for log in waiting.values() if log.stream})
        news = self._live.take()
        for log in waiting.values():
            log.is_watched = self._live.watches(log.stream)
            if news is None or log.stream in news:
                log.rouse()

    def _refresh(self) -> None:
        try:
            found = self._job.refresh()
        except Exception as error:
            if verdict(error) in ("final", "expired") or self._refresh_failures.left() == 0:
                raise
            delay = max(FIRST_REFRESH, self._refresh_failures.delay())
            self._refresh_due = self._clock.monotonic() + delay
            return
        self._refresh_failures.reset()
        self._refresh_failures.start()
        self._schedule_refresh(changed=self._take(found))

    def _take(self, found: Mapping[Key, ReplicaAttempts]) -> bool:
        """Tell each replica's log what is known now; returns whether that is new."""
        changes = [
            self._logs[key].update(runs.attempts, runs.over)
            for key, runs in found.items()
            if key in self._logs
        ]
        return any(changes)

    def _schedule_refresh(self, *, changed: bool) -> None:
        self._refresh_delay = FIRST_REFRESH if changed else min(self._refresh_delay * 1.5, LONGEST_REFRESH)
        self._refresh_due = self._clock.monotonic() + self._refresh_delay
        if all(log.is_over for log in self._logs.values()):
            self._refresh_due = float("inf")

    def _block(self, key: Key, events: Iterable[LogEvent]) -> Iterator[LogBlock]:
        """Yield the wanted lines of events in blocks; or keep them, if only the last are wanted."""
        tail = self._tails.get(key)
        lines: list[bytes] = []
        size = 0
        for event in events:
            for line in self._lines_of(event):
                lines.append(line)
                size += len(line)
            if tail is not None:
                tail.extend(lines)
                lines, size = [], 0
            elif size >= BLOCK_BYTES:
                yield LogBlock(*key, b"".join(lines))
                lines, size = [], 0
        if lines:
            yield LogBlock(*key, b"".join(lines))


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


class ReplicaFollower:
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

    def update(self, attempts: Sequence[AttemptLog], over: bool) -> bool:
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

    def available(self) -> Iterator[list[LogEvent]]:
        """Yield pages of what is new, until there is a reason to wait."""
        while not self.is_done and self.due <= self._clock.monotonic():
            if page := self.step():
                yield page

    def step(self) -> list[LogEvent]:
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

    def read_back(self, count: int, lines_of: Callable[[LogEvent], list[bytes]]) -> list[bytes]:
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


T = TypeVar("T")


class Workers:
    """Threads that carry out what is submitted, in order."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = 0

    def start(self, count: int) -> None:
        """Start so many threads."""
        self._count = count
        for i in range(count):
            threading.Thread(target=self._work, name=f"log-reader-{i}", daemon=True).start()

    def submit(self, function: Callable[..., T], *args: object) -> Future[T]:
        """Have a function called; its result or its error will be in the future."""
        future: Future[T] = Future()

        def task() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)

        self._tasks.put(task)
        return future

    def close(self) -> None:
        """Let the threads end when they have done what was submitted."""
        for _ in range(self._count):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


def ahead(workers: Workers, items: Iterator[T]) -> Iterator[T]:
    """Return an iterator over the items. The first is made at once, and each while the one before is used."""
    end = object()
    return _ahead(workers, items, workers.submit(next, items, end), end)


def _ahead(workers: Workers, items: Iterator[T], upcoming: Future[T | object], end: object) -> Iterator[T]:
    while (item := upcoming.result()) is not end:
        upcoming = workers.submit(next, items, end)
        yield item  # type: ignore[misc]
