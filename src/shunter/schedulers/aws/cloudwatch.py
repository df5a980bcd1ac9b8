"""Reading the logs of jobs from CloudWatch Logs: the lines that exist, and new ones until the job has ended.

FilterLogEvents reads a hundred streams in a call, in order of time. Events become visible late and out of
order, so following asks again from a while before the newest event, and drops the events (they have ids) that
were given before. The reader knows no scheduler: `Refresh` names the streams and says when no more
will come.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import Any, NamedTuple

from shunter.backoff import Backoff, Clock
from shunter.schedulers.api import LogBlock, LogQuery
from shunter.schedulers.aws.aws_errors import AwsError, failure_kind
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.lines import LineSearch, TimedLine, blocks_of, iter_lines

Key = tuple[str, int]
STREAMS_PER_CALL = 100
#: Lines of one replica that are passed on together.
LINES_PER_BLOCK = 1000
#: Seconds between two looks for new lines, at first and at most, and between two requests for the job.
FIRST_LOOK, LONGEST_LOOK, REFRESH = 1.0, 5.0, 5.0
#: How long looks and requests for the job may fail in a row (s) before following ends with the error, of a
#: service that has answered before, and of one that has not.
PATIENCE, FIRST_PATIENCE = 600.0, 30.0
#: How far back a look goes from the newest event, in milliseconds.
OVERLAP = 45_000
#: Ids of events that are remembered. The last look goes as far back as they do.
REMEMBERED = 100_000
#: Agents send their buffers every few seconds: this long (s) after the end, a log counts as complete, and a
#: stream that does not exist this long after it never will.
SETTLE, MISSING = 6.0, 20.0
#: Seconds for each stream that does not exist between two looks for all of them.
PROBE = 0.25


class AttemptLog(NamedTuple):
    """One run of a replica: its log stream, and when it ended (seconds since the epoch) if that is known."""

    stream: str
    ended: float | None = None


class ReplicaAttempts(NamedTuple):
    """The runs of a replica so far, oldest first, and whether no more will come and the last has ended."""

    attempts: Sequence[AttemptLog]
    over: bool


#: Asks the backend, and returns the attempts of all wanted replicas, by role and index.
Refresh = Callable[[], Mapping[Key, ReplicaAttempts]]


class _Event(NamedTuple):  # sorted by time
    time: int
    stream: str
    id: str
    message: str


def read_streams(
    session: AwsSession, group: str, refresh: Refresh, query: LogQuery, clock: Clock | None = None
) -> Iterator[LogBlock]:
    """Return the lines of a job's replicas, roughly in the order in which they were written.

    When following, and for a job that has just ended, reading goes on until all lines have arrived.

    Args:
        session: makes the calls.
        group: name of the log group.
        refresh: names the replicas' streams.
        query: which lines.
        clock: the time.

    Raises:
        UsageError: the regular expression is invalid.
        AwsError: CloudWatch refuses, or was unreachable for too long (from the iterator).
    """
    return _Reading(session, group, refresh, query, clock or Clock()).blocks()


def milliseconds(time: datetime) -> int:
    """Return a time as milliseconds since the epoch, rounded up; at least 0."""
    return max(0, -((datetime(1970, 1, 1, tzinfo=UTC) - time.astimezone(UTC)) // timedelta(milliseconds=1)))


class _Reading:
    """One reading of a job's logs, from its first call to its last."""

    def __init__(
        self, session: AwsSession, group: str, refresh: Refresh, query: LogQuery, clock: Clock
    ) -> None:
        self._session = session
        self._group = group
        self._ask = refresh
        self._query = query
        self._clock = clock
        self._search = None if query.regex is None else LineSearch(query.regex)
        self._since = milliseconds(query.since) if query.since else 0
        self._until = milliseconds(query.until) if query.until else None
        # FilterLogEvents includes this time, and GetLogEvents, which only counts, does not
        self._end = {} if self._until is None else {"endTime": self._until - 1}
        self._attempts: Mapping[Key, ReplicaAttempts] = {}
        self._keys: dict[str, Key] = {}
        self._existing: set[str] = set()
        self._starts: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._floor = self._newest = self._since  # events from the floor on are all remembered
        self._was_running = False
        self._ended: float | None = None  # by the monotonic clock
        self._refresh_due = self._probe_due = 0.0
        self._failures = Backoff(2.0, 20.0, jitter=0, limit=FIRST_PATIENCE, clock=clock)

    def blocks(self) -> Iterator[LogBlock]:
        """Yield the lines that the query asks for, as blocks."""
        last, follows = self._query.last, self._query.should_tail
        if last == 0 and not follows:
            return
        self._refresh()
        tails: dict[Key, deque[bytes]] = {}
        if last is not None:
            tails = {key: deque(maxlen=last) for key in self._attempts}
            self._find_last(last)
        delay = FIRST_LOOK
        while True:
            is_final = self._is_final()
            try:
                for key, lines in self._new_lines(is_final):
                    delay = FIRST_LOOK if lines else delay
                    if key in tails:
                        tails[key].extend(lines)
                    else:
                        yield from blocks_of(key, lines)
                self._failures.limit = PATIENCE
                if is_final or follows:
                    for key, tail in tails.items():
                        yield from blocks_of(key, tail)
                    tails = {}
                if is_final:
                    return
                if self._clock.monotonic() + delay >= self._refresh_due:
                    self._refresh()
            except Exception as error:
                if not follows or not self._may_pass(error):
                    raise
                delay = max(delay, self._failures.delay())
            self._clock.sleep(delay)
            delay = min(delay * 1.6, LONGEST_LOOK)

    def _may_pass(self, error: Exception) -> bool:
        """Tell whether following goes on after an error. Not seeing a job is not the job ending."""
        if not self._failures.failures:
            self._failures.start()
        if failure_kind(error) == "expired" and not self._failures.failures:
            self._session.renew()
            return True
        return failure_kind(error) not in ("final", "expired") and bool(self._failures.left())

    def _refresh(self) -> None:
        """Ask for the replicas' streams."""
        self._attempts = self._ask()
        self._failures.reset()
        self._refresh_due = self._clock.monotonic() + REFRESH
        for key, runs in self._attempts.items():
            self._keys.update(dict.fromkeys((attempt.stream for attempt in runs.attempts), key))

    def _is_over(self) -> bool:
        return all(runs.over for runs in self._attempts.values())

    def _is_final(self) -> bool:
        """Tell whether the next look is the last, since all lines that will come can be seen by then."""
        now, follows = self._clock.time(), self._query.should_tail
        until = float("inf") if self._until is None else self._until / 1000
        if now < until and not self._is_over():
            self._was_running = True
            return not follows
        if self._ended is None:
            ended = float("inf")
            if self._is_over():
                ends = [runs.attempts[-1].ended for runs in self._attempts.values() if runs.attempts]
                ended = max(((now if follows else 0.0) if end is None else end for end in ends), default=0.0)
            # what was seen to end has ended just now, whatever this machine's clock says
            age = 0.0 if self._was_running else max(0.0, now - min(ended, until))
            self._ended = self._clock.monotonic() - age
        patience = SETTLE if self._existing.issuperset(self._keys) else MISSING
        return self._clock.monotonic() - self._ended >= patience

    def _new_lines(self, is_final: bool) -> Iterator[tuple[Key, list[bytes]]]:
        """Look at all streams, and yield new lines with their replica; all that came before an error, too."""
        key, lines = ("", 0), list[bytes]()
        try:
            for event in self._new_events(is_final):
                own = self._keys[event.stream]
                if own != key or len(lines) >= LINES_PER_BLOCK:
                    yield key, lines
                    key, lines = own, []
                lines += self._lines_of(event.time, event.message)
        except Exception:
            yield key, lines
            raise
        yield key, lines

    def _new_events(self, is_final: bool) -> Iterator[_Event]:
        """Look at all streams, and yield the events that were not given before."""
        now = self._clock.monotonic()
        recent = min(self._newest, int(self._clock.time() * 1000)) - OVERLAP
        recent = self._floor if is_final else max(self._floor, recent)
        starts = dict.fromkeys(self._existing, recent)
        missing = self._keys.keys() - self._existing
        if is_final or now >= self._probe_due:
            self._probe_due = now + PROBE * len(missing)
            starts |= {stream: self._starts.get(stream, self._since) for stream in missing}
        looks = []
        # streams whose starts are in the same minute share calls
        for _, near in groupby(sorted(starts, key=starts.__getitem__), lambda name: starts[name] // 60_000):
            while streams := list(islice(near, STREAMS_PER_CALL)):
                looks.append(self._events(streams, starts[streams[0]], is_final))
        return filter(self._is_new, heapq.merge(*looks))

    def _events(self, streams: list[str], start: int, is_final: bool) -> Iterator[_Event]:
        """Yield the events of at most a hundred streams from a time on, in order of time."""
        if self._until is not None and start >= self._until:
            return
        params = {"logGroupName": self._group, "logStreamNames": streams, "startTime": start, **self._end}
        time = start
        try:
            for page in self._session.pages("logs", "FilterLogEvents", "events", interleaved=True, **params):
                for row in page:
                    time = int(row["timestamp"])  # servers other than AWS give fractions
                    yield _Event(time, row["logStreamName"], row["eventId"], row["message"])
                self._starts |= dict.fromkeys(streams, time)  # where to go on if the next page fails
            self._existing.update(streams)
        except AwsError as error:
            if error.code != "ResourceNotFoundException":
                raise
            if "group" in str(error):
                if is_final and self._is_over():
                    hint = "Is it the right group and region? Somebody may have deleted it."
                    raise AwsError(f"the log group {self._group} does not exist", hint=hint) from error
            elif len(streams) > 1:  # one of them does not exist, or not yet
                halves = (streams[: len(streams) // 2], streams[len(streams) // 2 :])
                yield from heapq.merge(*(self._events(half, start, is_final) for half in halves))

    def _is_new(self, event: _Event) -> bool:
        """Tell whether an event was not given before, and remember it."""
        if event.id in self._seen:
            return False
        self._seen[event.id] = event.time
        self._newest = max(self._newest, event.time)
        if len(self._seen) > REMEMBERED:
            middle = sorted(self._seen.values())[REMEMBERED // 2]
            self._seen = {name: time for name, time in self._seen.items() if time > middle}
            self._floor = max(self._floor, middle + 1)
        return True

    def _lines_of(self, time: int, message: str) -> list[bytes]:
        """Return the wanted lines of an event."""
        text = (message if message.endswith("\n") else message + "\n").encode("utf-8", "surrogatepass")
        lines = iter_lines(text if self._search is None else self._search.select(text))
        return [TimedLine.at(time * 1e6, line) for line in lines] if self._query.timed else list(lines)

    def _find_last(self, count: int) -> None:
        """Begin where each replica's last lines begin, or some time before it if events may still come."""
        overlap = 0 if self._is_final() else OVERLAP
        for runs in self._attempts.values():
            start, missing = 0, count
            for k, attempt in enumerate(reversed(runs.attempts)):
                if k == 0 or missing > 0:
                    start, found = self._start_of_last(attempt.stream, missing)
                    missing -= found
                    self._floor = max(self._floor, start - overlap)
                self._starts[attempt.stream] = max(self._since, start - overlap)

    def _start_of_last(self, stream: str, count: int) -> tuple[int, int]:
        """Return the time from which a stream has this many lines, or all, and how many there are."""
        params: dict[str, Any] = {"logGroupName": self._group, "logStreamName": stream, **self._end}
        params |= {"startTime": self._since, "startFromHead": False, "limit": min(10_000, 1000 + count)}
        found = 0
        try:
            while True:
                page = self._session.call("logs", "GetLogEvents", **params)
                for event in reversed(page["events"]):
                    found += len(self._lines_of(int(event["timestamp"]), event["message"]))
                    if found >= count:
                        return int(event["timestamp"]), found
                if page["nextBackwardToken"] == params.get("nextToken"):
                    return self._since, found
                params |= {"nextToken": page["nextBackwardToken"], "startFromHead": True}
        except AwsError as error:
            if error.code != "ResourceNotFoundException":
                raise
            return self._since, found
