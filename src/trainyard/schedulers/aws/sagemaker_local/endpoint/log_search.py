"""Events of many logs in order of time, a page at a time, holding no more than a page."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trainyard.schedulers.aws.sagemaker_local.endpoint.errors import ApiError
from trainyard.schedulers.aws.sagemaker_local.logs import Log, LogLine, log_path
from trainyard.schedulers.aws.sagemaker_local.training_job import TrainingJob

MOST_EVENTS = 10_000
MOST_BYTES = 1 << 20
#: CloudWatch counts so much for an event beside its text.
EVENT_BYTES = 26
#: How much one answer may look at. As on the service a page may then be empty, and there is another one.
MOST_SEARCHED = 64 << 20

#: Where an event is in the order of all: its time, stream and place.
Key = tuple[int, str, int]


@dataclass(frozen=True)
class Stream:
    """A log stream.

    Attributes:
        name: such as ``JOB/algo-1-1700000000000``.
        log: its log.
        is_over: whether its job has ended.
        job: its job.
    """

    name: str
    log: Log
    is_over: bool
    job: TrainingJob

    @classmethod
    def of(cls, job: TrainingJob, file: str, *, is_over: bool) -> Stream:
        """Return the stream of a job that is kept in a file."""
        return cls(f"{job.name}/{file}", Log(log_path(job, file)), is_over, job)

    def job_arn(self) -> str:
        """Return its job's ARN; "" if the job has just been deleted."""
        return str((self.job.read_request() or {}).get("arn", ""))


@dataclass(frozen=True)
class Query:
    """Which events are asked for.

    Attributes:
        matches: whether a message is wanted.
        since: the first millisecond.
        until: the last millisecond.
        limit: greatest number of events.
        after: the token of the page before.
    """

    matches: Callable[[str], bool]
    since: int
    until: int | None
    limit: int
    after: str | None


def find(streams: list[Stream], query: Query) -> tuple[list[tuple[Stream, LogLine]], str]:
    """Return a page of events, and the token of the next one; "" if there is none.

    Raises:
        ApiError: the token is none of ours.
    """
    after = _key_of(query.after) if query.after else None
    found: list[tuple[Stream, LogLine]] = []
    size = searched = 0
    last = after
    for key, stream, event in _in_order(streams, max(query.since, after[0] if after else 0)):
        if query.until is not None and event.time_ms > query.until:
            return found, ""
        if after is not None and key <= after:
            continue
        if searched >= MOST_SEARCHED:
            return found, _token_of(last)
        searched += len(event.data)
        if query.matches(message_of(event)):
            if len(found) >= query.limit or size + size_of_event(event) > MOST_BYTES:
                return found, _token_of(last)
            found.append((stream, event))
            size += size_of_event(event)
        last = key
    return found, ""


def _in_order(streams: list[Stream], since: int) -> Iterator[tuple[Key, Stream, LogLine]]:
    """Yield the events of all streams from a time on. A log is opened when its turn comes, not before."""
    waiting = sorted(streams, key=lambda stream: (stream.log.created_ms, stream.name), reverse=True)
    active: list[tuple[Key, LogLine, Stream, Iterator[LogLine]]] = []
    while active or waiting:
        while waiting and (not active or waiting[-1].log.created_ms <= active[0][0][0]):
            stream = waiting.pop()
            _advance(active, stream, _events(stream, since))
        if active:
            key, event, stream, rest = heapq.heappop(active)
            yield key, stream, event
            _advance(active, stream, rest)


def _advance(
    active: list[tuple[Key, LogLine, Stream, Iterator[LogLine]]], stream: Stream, rest: Iterator[LogLine]
) -> None:
    event = next(rest, None)
    if event is not None:
        key = (event.time_ms, stream.name, event.start)  # no two are equal, so nothing else is compared
        heapq.heappush(active, (key, event, stream, rest))


def _events(stream: Stream, since: int) -> Iterator[LogLine]:
    start = 0
    if since:
        start = stream.log.line_start(stream.log.boundary(since, stream.is_over))
    for event in stream.log.events(start, stream.is_over):
        if event.time_ms >= since:
            yield event


def size_of_event(event: LogLine) -> int:
    """Return how much an event counts in an answer."""
    return len(event.data) + EVENT_BYTES


def message_of(event: LogLine) -> str:
    """Return an event's text, without the end of its line."""
    return event.data.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")


def event_id(stream: Stream, event: LogLine) -> str:
    """Return what tells an event from all others; clients that follow count on it."""
    number = int.from_bytes(hashlib.sha256(stream.name.encode()).digest()[:8], "big")
    return f"{number:020d}{event.start:036d}"


def _token_of(key: Key | None) -> str:
    assert key is not None
    time_ms, name, place = key
    return f"{time_ms}/{place}/{name}"


def _key_of(token: str) -> Key:
    time_ms, _, rest = token.partition("/")
    place, _, name = rest.partition("/")
    for number in (time_ms, place):
        if not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise ApiError("InvalidParameterException", "The specified nextToken is invalid.")
    return int(time_ms), name, int(place)
