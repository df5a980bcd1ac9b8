"""CloudWatch Logs in memory: groups, streams, pages, tokens, late and hidden events."""

from __future__ import annotations

import bisect
import threading
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.aws.fake.wire import ACCOUNT, REGION, ApiError

PAGE_EVENTS = 10_000
PAGE_BYTES = 1 << 20
EVENT_OVERHEAD = 26
SEQUENCE_BITS = 44


@dataclass(order=True)
class Event:
    """A log event. ``id`` is its place in the stream: by time, then by when it came."""

    id: int
    timestamp: int = field(compare=False)
    message: str = field(compare=False)
    ingestion: int = field(compare=False)
    visible_at: float = field(compare=False)


@dataclass
class LogStream:
    name: str
    created: int
    events: list[Event] = field(default_factory=list)
    last_ingestion: int | None = None


class Logs:
    """The service.

    Attributes:
        page_events, page_bytes: how much a page holds at most.
        empty_every: every n-th page of events is empty though there is more, as AWS may do; 0 for none.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.RLock()
        self._groups: dict[str, dict[str, LogStream]] = {}
        self._sequence = 0
        self._page = 0
        self.page_events = PAGE_EVENTS
        self.page_bytes = PAGE_BYTES
        self.empty_every = 0

    # ---- what a test does

    def create_group(self, group: str) -> None:
        with self._lock:
            self._groups.setdefault(group, {})

    def create_stream(self, group: str, stream: str) -> None:
        with self._lock:
            self.create_group(group)
            self._groups[group].setdefault(stream, LogStream(stream, self._milliseconds()))

    def put(
        self,
        group: str,
        stream: str,
        events: Iterable[str | tuple[int, str]],
        *,
        visible_after: float = 0.0,
    ) -> None:
        """Add events: messages of now, or pairs of a time in milliseconds and a message.

        Args:
            group, stream: where to; made if it is not there.
            events: what.
            visible_after: seconds until they can be read.
        """
        with self._lock:
            self.create_stream(group, stream)
            target = self._groups[group][stream]
            now = self._milliseconds()
            for item in events:
                timestamp, message = (now, item) if isinstance(item, str) else item
                self._sequence += 1
                event_id = (timestamp << SEQUENCE_BITS) | self._sequence
                entry = Event(event_id, timestamp, message, now, self._now() + visible_after)
                bisect.insort(target.events, entry)
            target.last_ingestion = now

    # ---- operations

    def get_log_events(self, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("nextToken") and params.get("startFromHead") is False:
            raise ApiError("InvalidParameterException", "startFromHead must be true with a token")
        with self._lock:
            stream = self._stream(_group_name(params), params["logStreamName"])
            token = params.get("nextToken", "")
            direction, place = _read_token(token)
            backward = direction == "b" if token else not params.get("startFromHead", False)
            events, start, end = stream.events, *self._span(stream, params)
            limit = min(params.get("limit", PAGE_EVENTS), self.page_events)
            self._page += 1
            if self.empty_every and self._page % self.empty_every == 0:
                limit = 0
            if backward:
                end = min(end, bisect.bisect_left(events, place, key=_id)) if token else end
                indices = range(end - 1, start - 1, -1)
            else:
                start = max(start, bisect.bisect_right(events, place, key=_id)) if token else start
                indices = range(start, end)
            page, is_more = self._fill((events[i] for i in indices), limit)
            now = self._now()
            newest = next((e.id for e in reversed(events) if e.visible_at <= now), 0)
        if page:
            first, last = min(page).id, max(page).id
            tokens = (f"f/{last:056d}/s", f"b/{first:056d}/s")
        elif is_more:  # nothing though there is more: the token has to move
            salt = uuid.uuid4().hex[:8]
            at = place if token else (1 << 180 if backward else 0)
            tokens = (f"f/{at:056d}/{salt}", f"b/{at:056d}/{salt}")
        else:
            at = place if token else newest
            tokens = (f"f/{at:056d}/s", f"b/{at:056d}/s")
            if token:
                tokens = (tokens[0], token) if backward else (token, tokens[1])
        page.sort()
        shown = [{"timestamp": e.timestamp, "message": e.message, "ingestionTime": e.ingestion} for e in page]
        return {"events": shown, "nextForwardToken": tokens[0], "nextBackwardToken": tokens[1]}

    def filter_log_events(self, params: dict[str, Any]) -> dict[str, Any]:
        names = params.get("logStreamNames", [])
        if not 1 <= len(names) <= 100:
            raise ApiError("InvalidParameterException", "1 to 100 logStreamNames are expected")
        if params.get("startTime", 0) > params.get("endTime", 1 << 62):
            raise ApiError("InvalidParameterException", "startTime is after endTime")
        with self._lock:
            found: list[tuple[Event, str]] = []
            for name in names:
                stream = self._stream(_group_name(params), name)
                # unlike in GetLogEvents, the end is included
                start, end = self._span(stream, params | {"endTime": params.get("endTime", 1 << 62) + 1})
                found += [(event, name) for event in stream.events[start:end]]
            _, place = _read_token(params.get("nextToken", ""))
            found = sorted(item for item in found if item[0].id > place)
            limit = min(params.get("limit", PAGE_EVENTS), self.page_events)
            self._page += 1
            if self.empty_every and self._page % self.empty_every == 0:
                limit = 0
            page, is_more = self._fill((event for event, _ in found), limit)
        owners = {event.id: name for event, name in found}
        shown = [
            {
                "logStreamName": owners[e.id],
                "timestamp": e.timestamp,
                "message": e.message,
                "ingestionTime": e.ingestion,
                "eventId": f"{e.id:056d}",
            }
            for e in page
        ]
        answer: dict[str, Any] = {"events": shown, "searchedLogStreams": []}
        if is_more:
            last = page[-1].id if page else place
            answer["nextToken"] = f"f/{last:056d}/{uuid.uuid4().hex[:8]}"
        return answer

    def describe_log_streams(self, params: dict[str, Any]) -> dict[str, Any]:
        group = _group_name(params)
        with self._lock:
            streams = list(self._group(group).values())
            prefix = params.get("logStreamNamePrefix", "")
            if prefix and params.get("orderBy") == "LastEventTime":
                raise ApiError(
                    "InvalidParameterException", "Cannot order by LastEventTime with a logStreamNamePrefix."
                )
            streams = [stream for stream in streams if stream.name.startswith(prefix)]
            if params.get("orderBy") == "LastEventTime":
                streams.sort(key=lambda s: s.events[-1].timestamp if s.events else 0)
            else:
                streams.sort(key=lambda s: s.name)
            if params.get("descending"):
                streams.reverse()
            shown = [self._stream_detail(group, stream) for stream in streams]
        return _page("logStreams", shown, params, 50)

    def delete_log_stream(self, params: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._stream(_group_name(params), params["logStreamName"])
            del self._group(_group_name(params))[params["logStreamName"]]
        return {}

    def describe_log_groups(self, params: dict[str, Any]) -> dict[str, Any]:
        prefix = params.get("logGroupNamePrefix", "")
        with self._lock:
            names = sorted(name for name in self._groups if name.startswith(prefix))
        shown = [
            {
                "logGroupName": name,
                "arn": f"{group_arn(name)}:*",
                "logGroupArn": group_arn(name),
                "creationTime": 1,
                "storedBytes": 0,
            }
            for name in names
        ]
        return _page("logGroups", shown, params, 50)

    def create_log_group(self, params: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            if params["logGroupName"] in self._groups:
                raise ApiError("ResourceAlreadyExistsException", "The specified log group already exists")
            self.create_group(params["logGroupName"])
        return {}

    # ---- parts

    def _span(self, stream: LogStream, params: dict[str, Any]) -> tuple[int, int]:
        """Return where the events of the time that is asked for begin and end."""
        start = params.get("startTime", 0) << SEQUENCE_BITS
        end = params.get("endTime", 1 << 62) << SEQUENCE_BITS
        events = stream.events
        return bisect.bisect_left(events, start, key=_id), bisect.bisect_left(events, end, key=_id)

    def _fill(self, events: Iterable[Event], limit: int) -> tuple[list[Event], bool]:
        """Return a page of the events that can be seen, and whether there are more."""
        now = self._now()
        page: list[Event] = []
        size = 0
        for event in events:
            if event.visible_at > now:
                continue
            size += len(event.message.encode()) + EVENT_OVERHEAD
            if len(page) >= limit or (page and size > self.page_bytes):
                return page, True
            page.append(event)
        return page, False

    def _stream_detail(self, group: str, stream: LogStream) -> dict[str, Any]:
        detail: dict[str, Any] = {
            "logStreamName": stream.name,
            "creationTime": stream.created,
            "arn": f"{group_arn(group)}:log-stream:{stream.name}",
            "storedBytes": 0,
        }
        if stream.events:
            detail["firstEventTimestamp"] = stream.events[0].timestamp
            detail["lastEventTimestamp"] = stream.events[-1].timestamp
            detail["lastIngestionTime"] = stream.last_ingestion
        return detail

    def _group(self, group: str) -> dict[str, LogStream]:
        if group not in self._groups:
            raise ApiError("ResourceNotFoundException", "The specified log group does not exist.")
        return self._groups[group]

    def _stream(self, group: str, name: str) -> LogStream:
        streams = self._group(group)
        if name not in streams:
            raise ApiError("ResourceNotFoundException", "The specified log stream does not exist.")
        return streams[name]

    def _milliseconds(self) -> int:
        return int(self._now() * 1000)


def _id(event: Event) -> int:
    return event.id


def group_arn(group: str) -> str:
    return f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{group}"


def _group_name(params: dict[str, Any]) -> str:
    name: str = params.get("logGroupName") or params.get("logGroupIdentifier", "")
    return name.partition(":log-group:")[2] or name


def _read_token(token: str) -> tuple[str, int]:
    if not token:
        return "", 0
    try:
        direction, place, _ = token.split("/")
        return direction, int(place)
    except ValueError:
        raise ApiError("InvalidParameterException", "The specified nextToken is invalid.") from None


def _page(key: str, items: list[dict[str, Any]], params: dict[str, Any], limit: int) -> dict[str, Any]:
    start = int(params.get("nextToken") or 0)
    end = start + min(params.get("limit", limit), limit)
    return {key: items[start:end]} | ({"nextToken": str(end)} if end < len(items) else {})
