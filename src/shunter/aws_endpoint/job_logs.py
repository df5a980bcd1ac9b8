"""CloudWatch Logs' reading operations on the logs of this machine's training jobs."""

from __future__ import annotations

import hashlib
import heapq
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from shunter.aws_endpoint.job_streams import JobStream, LogLine, streams_of
from shunter.aws_endpoint.training_jobs import find_job, is_number, jobs_of, page_of
from shunter.schedulers.sagemaker_local_scheduler.request_validation import ApiError, check
from shunter.schedulers.supervisor.log_recorder import BUCKET_NS

GROUP = "/aws/sagemaker/TrainingJobs"
MOST_EVENTS = 10_000
MOST_BYTES = 1 << 20
#: CloudWatch adds this to the length of each event's text.
EVENT_BYTES = 26

#: Where an event is in the order of all: its time, stream and place.
Key = tuple[int, str, int]


def describe_log_groups(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """DescribeLogGroups: the one group, which the first job's log makes."""
    _check("DescribeLogGroups", params)
    prefix, pattern = params.get("logGroupNamePrefix", ""), params.get("logGroupNamePattern", "")
    if prefix and pattern:
        raise _wrong("LogGroup name prefix and LogGroup name pattern are mutually exclusive parameters.")
    streams = _streams("", region)
    names = [_group_of(name) for name in params.get("logGroupIdentifiers") or [GROUP]]
    is_wanted = GROUP.startswith(prefix) and pattern.lower() in GROUP.lower() and GROUP in names
    if not streams or not is_wanted or params.get("logGroupClass", "STANDARD") != "STANDARD":
        return {"logGroups": []}
    oldest = min(streams, key=lambda stream: stream.created_ms)
    row = {
        "logGroupName": GROUP,
        "creationTime": oldest.created_ms,
        "metricFilterCount": 0,
        "arn": f"{_arn(oldest)}:*",
        "logGroupArn": _arn(oldest),
        "logGroupClass": "STANDARD",
        "storedBytes": sum(stream.size for stream in streams),
    }
    return {"logGroups": [row]}


def describe_log_streams(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """DescribeLogStreams."""
    _check_group("DescribeLogStreams", params)
    prefix = params.get("logStreamNamePrefix", "")
    by_time = params.get("orderBy") == "LastEventTime"
    if by_time and prefix:
        raise _wrong("Cannot order by LastEventTime with a logStreamNamePrefix.")
    rows = [_stream_row(stream) for stream in _streams(prefix, region)]
    rows.sort(key=lambda row: row["logStreamName"])
    if by_time:
        rows.sort(key=lambda row: row.get("lastEventTimestamp", 0))
    if params.get("descending"):
        rows.reverse()
    try:
        page, token = page_of(rows, params.get("nextToken"), params.get("limit", 50))
    except ApiError:
        raise _wrong("The specified nextToken is invalid.") from None
    return {"logStreams": page, **({"nextToken": token} if token else {})}


def get_log_events(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """GetLogEvents. A token is a direction, and the place in the log up to which it has been read."""
    _check_group("GetLogEvents", params)
    stream = _stream(params["logStreamName"], region)
    if params.get("nextToken"):
        direction, _, place = params["nextToken"].partition("/")
        if direction not in ("f", "b") or not is_number(place):
            raise _wrong("The specified nextToken is invalid.")
        is_forward, place = direction == "f", min(int(place), stream.size)
    else:
        is_forward = params.get("startFromHead", False)
        place = 0 if is_forward else stream.size
    events, first, last = (_page_forward if is_forward else _page_backward)(stream, place, params)
    return {
        "events": [_event_row(event) for event in events],
        "nextForwardToken": f"f/{last:056d}",
        "nextBackwardToken": f"b/{first:056d}",
    }


def filter_log_events(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """FilterLogEvents, over all streams in order of time."""
    now_ns = time.time_ns()
    _check_group("FilterLogEvents", params)
    names, prefix = params.get("logStreamNames"), params.get("logStreamNamePrefix", "")
    if names and prefix:
        raise _wrong("logStreamNames and logStreamNamePrefix cannot both be given.")
    if params.get("filterPattern"):
        raise _wrong(
            "filterPattern is not supported by this endpoint: leave it out, and filter the events yourself,"
            " such as with `aws logs tail ... | grep`"
        )
    if params.get("startFromHead") is False:
        raise _wrong("startFromHead=false: this machine shows the earliest events first.")
    streams = [_stream(name, region) for name in dict.fromkeys(names)] if names else _streams(prefix, region)
    if not all(stream.is_over for stream in streams):
        # Clients that follow ask next for what is later than all they have seen. So an event is shown once no
        # stream can get an earlier one.
        known_ms = (now_ns - BUCKET_NS) // 1_000_000
        params = {**params, "endTime": min(params.get("endTime", known_ms), known_ms)}
    page, token = _page_of_all(streams, params)
    return {
        "events": [
            {**_event_row(event), "logStreamName": stream.name, "eventId": _event_id(stream, event)}
            for stream, event in page
        ],
        "searchedLogStreams": [],
        **({"nextToken": token} if token else {}),
    }


def _page_forward(stream: JobStream, place: int, params: dict[str, Any]) -> tuple[list[LogLine], int, int]:
    """Return the events from a place on, where they begin, and the place up to which the log was read."""
    since, until = params.get("startTime", 0), params.get("endTime")
    limit = params.get("limit", MOST_EVENTS)
    events: list[LogLine] = []
    size = 0
    start = max(place, stream.start(since))
    for event in stream.events(start):
        if len(events) >= limit or size + _size_of(event) > MOST_BYTES:
            break
        if until is not None and event.time_ms >= until:
            break
        place = event.end
        if event.time_ms >= since:
            events.append(event)
            size += _size_of(event)
    return events, events[0].start if events else place, place


def _page_backward(stream: JobStream, place: int, params: dict[str, Any]) -> tuple[list[LogLine], int, int]:
    """Return the last events before a place, where they begin, and where they end."""
    since, until = params.get("startTime", 0), params.get("endTime")
    limit = params.get("limit", MOST_EVENTS)
    end = min(place, stream.boundary(until)) if until is not None else place
    # more than one answer may hold need not be read
    earliest = stream.line_start(max(0, end - MOST_BYTES))
    start = max(stream.start_of_last(limit, end), earliest, stream.start(since))
    events: deque[LogLine] = deque()
    size = 0
    for event in stream.events(start):
        if event.start >= end:
            break
        if event.time_ms < since:
            continue
        events.append(event)
        size += _size_of(event)
        while len(events) > limit or size > MOST_BYTES:
            size -= _size_of(events.popleft())
    if not events:
        return [], place, min(start, place)  # and not in the midst of a line that is being written
    return list(events), events[0].start, events[-1].end


def _page_of_all(
    streams: list[JobStream], params: dict[str, Any]
) -> tuple[list[tuple[JobStream, LogLine]], str]:
    """Return the next events of streams, and the token of the page after them, or ""."""
    since, until, limit = params.get("startTime", 0), params.get("endTime"), params.get("limit", MOST_EVENTS)
    after = _key_of(params["nextToken"]) if params.get("nextToken") else None
    page: list[tuple[JobStream, LogLine]] = []
    size, token = 0, ""
    for key, stream, event in _in_order(streams, max(since, after[0] if after else 0)):
        if until is not None and event.time_ms > until:
            break
        if after is not None and key <= after:
            continue
        size += _size_of(event)
        if len(page) >= limit or size > MOST_BYTES:
            return page, token
        page.append((stream, event))
        token = f"{event.time_ms}/{event.start}/{stream.name}"
    return page, ""


def _key_of(token: str) -> Key:
    time_ms, _, rest = token.partition("/")
    place, _, name = rest.partition("/")
    if not is_number(time_ms) or not is_number(place):
        raise _wrong("The specified nextToken is invalid.")
    return int(time_ms), name, int(place)


def _in_order(streams: list[JobStream], since: int) -> Iterator[tuple[Key, JobStream, LogLine]]:
    """Yield the events of all streams from a time on. A log is opened when its turn comes, not before."""
    waiting = sorted(streams, key=lambda stream: (stream.created_ms, stream.name), reverse=True)
    active: list[tuple[Key, LogLine, JobStream, Iterator[LogLine]]] = []
    while active or waiting:
        if waiting and (not active or waiting[-1].created_ms <= active[0][0][0]):
            stream = waiting.pop()
            rest = stream.events(stream.start(since))
        else:
            key, event, stream, rest = heapq.heappop(active)
            if event.time_ms >= since:
                yield key, stream, event
        following = next(rest, None)
        if following is not None:  # no two keys are equal, so nothing else is compared
            key = (following.time_ms, stream.name, following.start)
            heapq.heappush(active, (key, following, stream, rest))


def _check_group(operation: str, params: dict[str, Any]) -> None:
    _check(operation, params)
    if params.get("logGroupName", _group_of(params.get("logGroupIdentifier", ""))) != GROUP:
        raise ApiError("ResourceNotFoundException", "The specified log group does not exist.")


def _check(operation: str, params: dict[str, Any]) -> None:
    try:
        check(operation, params, "logs")
    except ApiError as error:
        raise error if error.code == "SerializationException" else _wrong(error.message) from None


def _group_of(identifier: str) -> str:
    """Return the name of a log group that is given by its ARN, or its name."""
    return identifier.rpartition("log-group:")[2]


def _streams(prefix: str, region: str) -> list[JobStream]:
    """Return the streams whose names begin with a prefix."""
    name, slash, _ = prefix.partition("/")
    jobs = [job for job in jobs_of(region) if (job.name == name if slash else job.name.startswith(name))]
    return [stream for job in jobs for stream in streams_of(job) if stream.name.startswith(prefix)]


def _stream(full: str, region: str) -> JobStream:
    job = find_job(full.partition("/")[0], region)
    for stream in streams_of(job) if job is not None else ():
        if stream.name == full:
            return stream
    raise ApiError("ResourceNotFoundException", "The specified log stream does not exist.")


def _stream_row(stream: JobStream) -> dict[str, Any]:
    row = {
        "logStreamName": stream.name,
        "creationTime": stream.created_ms,
        "arn": f"{_arn(stream)}:log-stream:{stream.name}",
        "storedBytes": 0,  # nor does the service tell it any more
    }
    span = stream.span()
    if span is not None:
        row.update(firstEventTimestamp=span[0], lastEventTimestamp=span[1], lastIngestionTime=span[1])
    return row


def _arn(stream: JobStream) -> str:
    """Return the group's ARN in the account that a stream's job belongs to."""
    arn = (stream.job.read_request() or {}).get("arn", "")  # the job may have just been deleted
    _, partition, _, region, account, _ = f"{arn}:::::".split(":", 5)
    return f"arn:{partition or 'aws'}:logs:{region}:{account}:log-group:{GROUP}"


def _event_id(stream: JobStream, event: LogLine) -> str:
    """Return an id that no other event has; clients that follow rely on it."""
    number = int.from_bytes(hashlib.sha256(stream.name.encode()).digest()[:8], "big")
    return f"{number:020d}{event.start:036d}"


def _size_of(event: LogLine) -> int:
    return len(event.data) + EVENT_BYTES


def _event_row(event: LogLine) -> dict[str, Any]:
    return {
        "timestamp": event.time_ms,
        "message": event.data.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r"),
        "ingestionTime": min(event.time_ms, time.time_ns() // 1_000_000),
    }


def _wrong(message: str) -> ApiError:
    return ApiError("InvalidParameterException", message)
