"""Reading the logs of jobs from CloudWatch Logs: the lines that exist, and new ones until the job has ended.

One reader serves all replicas of a job and makes at most `CALLS_PER_SECOND` (AWS allows an account some 25
GetLogEvents a second in a region). It knows nothing of the scheduler: a `JobLogs` names the streams and says
whether more will come.

AWS does not keep exactly what was written: the text of an event is never empty, so agents drop empty lines,
and they cut lines that are too long into several events.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeVar

from shunter.backoff import Clock
from shunter.schedulers.api import LogBlock, LogQuery
from shunter.schedulers.aws.aws_errors import failure_kind
from shunter.schedulers.aws.cloudwatch_calls import (
    CloudWatchEvent,
    LogCalls,
    MissingGroupError,
    RateLimit,
    ReadingStoppedError,
    default_translation,
)
from shunter.schedulers.aws.cloudwatch_cursor import StreamCursor
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.lines import LineSearch, TimedLine, blocks_of, compile_regex, iter_lines

Key = tuple[str, int]

CALLS_PER_SECOND = 8.0
BURST = 8
#: Events held for all streams together: in pages that are read ahead, and remembered to find late ones.
PAGES_OF_ALL = 100_000
REMEMBERED_OF_ALL = 200_000
#: Threads that read pages ahead.
WORKERS = 8
#: Seconds between two requests for the job's streams and state: at first, and at most.
FIRST_REFRESH = 2.0
LONGEST_REFRESH = 10.0
#: How long (s) requests for the job may fail before following ends with the error.
REFRESH_PATIENCE = 600.0
#: A block is passed on when it has this many bytes.
BLOCK_BYTES = 256 << 10
#: Clocks may differ by this many seconds.
SKEW = 900.0


class AttemptLog(NamedTuple):
    """One run of a replica: its log stream, and when it ended (seconds since the epoch) if that is known."""

    stream: str
    ended: float | None = None


class ReplicaAttempts(NamedTuple):
    """The runs of a replica so far, oldest first, and whether no more will come and the last has ended."""

    attempts: Sequence[AttemptLog]
    over: bool


class JobLogs(Protocol):
    """Knows where the logs of a job's replicas are."""

    def refresh(self) -> Mapping[Key, ReplicaAttempts]:
        """Ask the backend, and return the attempts of all wanted replicas, by role and index."""


class LogStreams:
    """Reads streams of one log group. All readers of one object share the rate limit.

    Args:
        client: boto3's client of the service ``logs``. It need not retry: calls are repeated here.
        group: name of the log group.
        renew: makes another client when the credentials have expired; None if that cannot help.
        translate: returns our error for one of botocore and the operation's name.
        calls_per_second: the rate limit.
        clock: the time.
    """

    def __init__(
        self,
        client: Any,
        group: str,
        *,
        renew: Callable[[], Any] | None = None,
        translate: Callable[[Exception, str], Exception] = default_translation,
        calls_per_second: float = CALLS_PER_SECOND,
        clock: Clock | None = None,
    ) -> None:
        self.group = group
        self._client = client
        self._renew = renew
        self._translate = translate
        self._clock = clock or Clock()
        self._rate_limit = RateLimit(calls_per_second, BURST, self._clock)

    def read(self, job: JobLogs, query: LogQuery) -> Iterator[LogBlock]:
        """Return the lines of a job's replicas, roughly in the order in which they were written.

        The attempts of a replica come one after the other. When following, and for a job that has just ended,
        reading goes on until all lines have arrived.

        Args:
            job: names the replicas' streams.
            query: which lines.

        Raises:
            UsageError: the regular expression is invalid.
            BackendError: CloudWatch refuses, or was unreachable for too long (from the iterator).
        """
        return _Reading(job, query, _line_filter(query), self._calls(), self._clock).blocks()

    def find(self, prefix: str) -> list[str]:
        """Return the names of all streams with this prefix, in order; empty if the group does not exist.

        Raises:
            BackendError: CloudWatch refuses, or was unreachable for too long.
        """
        try:
            return self._calls().stream_names(prefix)
        except MissingGroupError:
            return []

    def _calls(self) -> LogCalls:
        return LogCalls(self._client, self.group, self._rate_limit, self._clock, self._renew, self._translate)


def streams_of(session: AwsSession, group: str) -> LogStreams:
    """Return the streams of a log group, read with the credentials of a session."""
    return LogStreams(
        session.client("logs", repeats=False),
        group,
        renew=lambda: session.renewed_client("logs"),
        translate=lambda error, operation: session.translated(error, "logs", operation),
    )


def milliseconds(time: datetime) -> int:
    """Return a time as milliseconds since the epoch, rounded up."""
    return -((datetime(1970, 1, 1, tzinfo=UTC) - time.astimezone(UTC)) // timedelta(milliseconds=1))


def _line_filter(query: LogQuery) -> Callable[[CloudWatchEvent], list[bytes]]:
    """Return a function that returns the wanted lines of an event."""
    select: Callable[[bytes], bytes] = bytes
    if query.regex is not None:
        compile_regex(query.regex)
        select = LineSearch(query.regex).select

    def lines_of(event: CloudWatchEvent) -> list[bytes]:
        text = event.message if event.message.endswith("\n") else event.message + "\n"
        lines = iter_lines(select(text.encode("utf-8", "surrogatepass")))
        return [TimedLine.at(event.time * 1e6, line) for line in lines] if query.timed else list(lines)

    return lines_of


class _Reading:
    """One reading of a job's logs, from its first call to its last."""

    def __init__(
        self,
        job: JobLogs,
        query: LogQuery,
        lines_of: Callable[[CloudWatchEvent], list[bytes]],
        calls: LogCalls,
        clock: Clock,
    ) -> None:
        self._job = job
        self._query = query
        self._lines_of = lines_of
        self._calls = calls
        self._clock = clock
        self._logs: dict[Key, ReplicaFollower] = {}
        self._tails: dict[Key, deque[bytes]] = {}
        self._refresh_due = 0.0
        self._refresh_delay = FIRST_REFRESH
        self._refresh_failures = calls.backoff(REFRESH_PATIENCE)

    def blocks(self) -> Iterator[LogBlock]:
        """Yield the lines that the query asks for, as blocks."""
        workers = _Workers()
        try:
            self._begin()
            workers.start(min(WORKERS, len(self._logs)))
            if self._query.last is None:
                yield from self._history(workers)
            else:
                yield from self._last(workers, self._query.last)
            yield from self._follow()
            for key, lines in self._tails.items():
                yield from blocks_of(key, lines)
        except MissingGroupError as error:
            raise self._calls.missing_group() from error
        except ReadingStoppedError:  # only a reader that was closed stops its calls
            return
        finally:
            self._calls.stop.set()
            workers.close()

    # ---- lines that exist

    def _begin(self) -> None:
        found = self._job.refresh()
        count = max(1, len(found))
        since = max(0, milliseconds(self._query.since)) if self._query.since else 0
        until = max(0, milliseconds(self._query.until)) if self._query.until else None
        is_follower = self._query.should_tail
        for key in found:
            end = until
            if not is_follower and end is None:
                # Without an end, AWS says, reading may never finish while much is written.
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
        self._update(found)
        self._schedule_refresh(changed=True)

    def _history(self, workers: _Workers) -> Iterator[LogBlock]:
        """Yield the lines that exist, merged by time. One page of each replica is read ahead."""

        def events(
            key: Key, pages: Iterator[list[CloudWatchEvent]]
        ) -> Iterator[tuple[int, Key, CloudWatchEvent]]:
            newest = 0
            for page in pages:
                for event in page:
                    newest = max(newest, event.time)
                    yield newest, key, event

        streams = [events(key, ahead(workers, log.available())) for key, log in self._logs.items()]
        merged: Iterable[tuple[int, Key, CloudWatchEvent]]
        merged = streams[0] if len(streams) == 1 else heapq.merge(*streams, key=lambda item: item[0])
        for key, items in groupby(merged, key=lambda item: item[1]):
            yield from self._block(key, (event for _, _, event in items))

    def _last(self, workers: _Workers, count: int) -> Iterator[LogBlock]:
        """Yield the last lines of each replica; or keep them, if later ones may replace them."""
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
            else:
                yield from blocks_of(key, lines)

    # ---- new lines

    def _follow(self) -> Iterator[LogBlock]:
        """Yield new lines, until each replica is done."""
        while waiting := {key: log for key, log in self._logs.items() if not log.is_done}:
            now = self._clock.monotonic()
            if self._query.should_tail and now >= self._refresh_due:
                self._refresh()
                continue
            key, log = min(waiting.items(), key=lambda item: item[1].due)
            if log.due > now:
                until = min(log.due, self._refresh_due) if self._query.should_tail else log.due
                self._pause(until - now)
                continue
            yield from self._block(key, log.step())

    def _pause(self, seconds: float) -> None:
        self._clock.wait(self._calls.stop, seconds)

    def _refresh(self) -> None:
        try:
            found = self._job.refresh()
        except Exception as error:
            if failure_kind(error) in ("final", "expired") or self._refresh_failures.left() == 0:
                raise
            delay = max(FIRST_REFRESH, self._refresh_failures.delay())
            self._refresh_due = self._clock.monotonic() + delay
            return
        self._refresh_failures.reset()
        self._refresh_failures.start()
        self._schedule_refresh(changed=self._update(found))

    def _update(self, found: Mapping[Key, ReplicaAttempts]) -> bool:
        """Pass on what is known of each replica's attempts; returns whether any of it is new."""
        logs = self._logs
        changes = [logs[key].update(runs.attempts, runs.over) for key, runs in found.items() if key in logs]
        return any(changes)

    def _schedule_refresh(self, *, changed: bool) -> None:
        self._refresh_delay = FIRST_REFRESH if changed else min(self._refresh_delay * 1.5, LONGEST_REFRESH)
        self._refresh_due = self._clock.monotonic() + self._refresh_delay
        if all(log.is_over for log in self._logs.values()):
            self._refresh_due = float("inf")

    def _block(self, key: Key, events: Iterable[CloudWatchEvent]) -> Iterator[LogBlock]:
        """Yield the wanted lines of events in blocks; or keep them, if only the last lines are wanted."""
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
                yield from blocks_of(key, lines)
                lines, size = [], 0
        yield from blocks_of(key, lines)


#: Seconds between two polls of a stream: when it has just grown, and when it is silent.
FIRST_LOOK = 1.0
LONGEST_LOOK = 5.0
#: Silent streams polled per second, if there are many.
SILENT_LOOKS_PER_SECOND = 4.0
#: Seconds between two checks of a stream's end for late events: of a growing stream, and of a silent one.
SWEEP = 20.0
SILENT_SWEEP = 60.0
#: Agents send their buffers every few seconds. This long (s) after the end, a log counts as complete unless
#: AWS reports more events; and this long after the end, it counts as complete in any case.
SETTLE = 6.0
LATE = 60.0
#: A stream that does not exist this long after the end (s) never will.
MISSING = 20.0


class ReplicaFollower:
    """Reads the streams of one replica's attempts one after the other, and decides when to poll them again.

    Args:
        calls: makes the calls.
        clock: the time.
        since, until: the wanted time, in milliseconds since the epoch.
        limit: events of a page.
        capacity: events to remember.
        is_follower: whether to go on until the replica has ended.
        is_open: whether all lines are wanted, however late.
        replicas: how many are read together.

    Attributes:
        due: when to read next, by the monotonic clock.
        is_done: whether nothing more will come.
        is_over: whether the replica has ended.
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

    def update(self, attempts: Sequence[AttemptLog], over: bool) -> bool:
        """Record the attempts; returns whether anything has changed."""
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

    # ---- reading

    def available(self) -> Iterator[list[CloudWatchEvent]]:
        """Yield pages of new events, until there is a reason to wait."""
        while not self.is_done and self.due <= self._clock.monotonic():
            if page := self.step():
                yield page

    def step(self) -> list[CloudWatchEvent]:
        """Make one call, and decide when the next is due. Returns the new events."""
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
            self._poll_later(cursor)
        else:
            self.is_done = True
        return events

    def read_back(self, count: int, lines_of: Callable[[CloudWatchEvent], list[bytes]]) -> list[bytes]:
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
        if self._cursor is None:
            self._wait_for_attempt()
        elif (ended := self._ended_at(self._cursor.stream)) is not None:
            self._settle(self._cursor, ended)
        elif self._is_follower:
            self._next_scan = True
            self.due = self._clock.monotonic()
        else:
            self.is_done = True
        return lines

    # ---- when to read again

    def _open(self) -> StreamCursor | None:
        """Return the cursor of the attempt to read; None if no attempt is known yet."""
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
        """Return when a stream ended (seconds since the epoch); None if it is still written to."""
        until = self._span[1]
        if self._is_follower and until is not None and self._calls.now() * 1000 >= until:
            return until / 1000
        if name not in self._known_over:
            return None
        ended = self._ends[name]
        if ended is not None:
            return ended
        if not self._is_follower:
            return 0.0  # long ago, as far as one knows
        return self._calls.now() - (self._clock.monotonic() - self._known_over[name])

    def _wait_for_attempt(self) -> None:
        until = self._span[1]
        is_past = until is not None and self._calls.now() * 1000 >= until
        if self.is_over or is_past or not self._is_follower:
            self.is_done = True
        else:
            self.due = float("inf") if until is None else self._clock.monotonic() + LONGEST_LOOK

    def _settle(self, cursor: StreamCursor, ended: float) -> None:
        """At the end of a stream that has ended: go on to the next, or read it again for late events."""
        age = self._calls.now() - ended
        looked = age - (self._clock.monotonic() - cursor.scan_started) if cursor.scan_is_full else 0.0
        if not cursor.exists:
            is_settled = age >= MISSING
        elif looked >= LATE:
            is_settled = True
        elif looked >= SETTLE and not cursor.scan_has_news:
            # If no event is from `since` on, the stream's last ingestion says nothing about the wanted time.
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
        """Tell whether AWS has events that have not been read."""
        return self._calls.last_ingestion(cursor.stream) > cursor.ingested

    def _poll_later(self, cursor: StreamCursor) -> None:
        """At the end of a stream that may grow: decide when to read again, and how far back."""
        now = self._clock.monotonic()
        self.due = now + min(self._interval, self._longest)
        self._interval = min(self._interval * 1.6, self._longest)
        if now >= self._sweep_due and cursor.exists:
            self._next_scan = False
            self._sweep_due = now + (SWEEP if self._had_news else SILENT_SWEEP)
            self._had_news = False


T = TypeVar("T")


class _Workers:
    """Threads that carry out what is submitted, in order."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = 0

    def start(self, count: int) -> None:
        """Start the threads."""
        self._count = count
        for i in range(count):
            threading.Thread(target=self._work, name=f"log-reader-{i}", daemon=True).start()

    def submit(self, function: Callable[..., T], *args: object) -> Future[T]:
        """Queue a call, and return a `Future` with its result or error."""
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


def ahead(workers: _Workers, items: Iterator[T]) -> Iterator[T]:
    """Return an iterator over the items. The first is made at once, and each while the one before is used."""
    end = object()
    return _ahead(workers, items, workers.submit(next, items, end), end)


def _ahead(workers: _Workers, items: Iterator[T], upcoming: Future[T | object], end: object) -> Iterator[T]:
    while (item := upcoming.result()) is not end:
        upcoming = workers.submit(next, items, end)
        yield item  # type: ignore[misc]
