"""CloudWatch Logs' reading operations on the logs of this machine's training jobs."""

from __future__ import annotations

import hashlib
import heapq
import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from shunter.aws_endpoint.training_jobs import find_job, jobs_of, page_of
from shunter.schedulers.exec.process.recovery import current_state
from shunter.schedulers.sagemaker_local_scheduler.job_status import TERMINAL
from shunter.schedulers.sagemaker_local_scheduler.logs import Log, LogLine
from shunter.schedulers.sagemaker_local_scheduler.request_validation import ApiError, check
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob

GROUP = "/aws/sagemaker/TrainingJobs"
MOST_EVENTS = 10_000
MOST_BYTES = 1 << 20
#: CloudWatch adds this to the length of each event's text.
EVENT_BYTES = 26

#: Where an event is in the order of all: its time, stream and place.
Key = tuple[int, str, int]


class JobStream:
    """A log stream.

    Attributes:
        name: such as ``JOB/algo-1-1700000000000``.
        log: its log.
        is_over: whether its job has ended.
        job: its job.
    """

    def __init__(self, job: TrainingJob, file: str, is_over: bool) -> None:
        self.name = f"{job.name}/{file}"
        self.log = Log(job.log_path(file))
        self.is_over = is_over
        self.job = job

    def start(self, since: int) -> int:
        """Return where the line begins that was being written at a time; 0 for no time."""
        return self.log.line_start(self.log.boundary(since, self.is_over)) if since else 0


#: The next event of a stream, with its key, and those after it.
_NextEvent = tuple[Key, LogLine, JobStream, Iterator[LogLine]]


def describe_log_groups(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """DescribeLogGroups: the one group, which the first job's log makes."""
    _check("DescribeLogGroups", params)
    prefix, pattern = params.get("logGroupNamePrefix", ""), params.get("logGroupNamePattern", "")
    if prefix and pattern:
        raise _wrong("LogGroup name prefix and LogGroup name pattern are mutually exclusive parameters.")
    streams = _streams("", region)
    names = [_group_of(name) for name in params.get("logGroupIdentifiers") or [GROUP]]
    is_wanted = GROUP.startswith(prefix) and pattern.lower() in GROUP.lower() and GROUP in names
    kind = params.get("logGroupClass", "STANDARD")
    if not (streams and is_wanted and kind == "STANDARD") or params.get("nextToken"):
        return {"logGroups": []}
    arn = _arn(min(streams, key=lambda stream: stream.log.created_ms))
    row = {
        "logGroupName": GROUP,
        "creationTime": min(stream.log.created_ms for stream in streams),
        "metricFilterCount": 0,
        "arn": f"{arn}:*",
        "logGroupArn": arn,
        "logGroupClass": "STANDARD",
        "storedBytes": sum(stream.log.size for stream in streams),
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
        page, token = page_of(rows, params, "limit", 50)
    except ApiError:
        raise _wrong("The specified nextToken is invalid.") from None
    return {"logStreams": page, **({"nextToken": token["NextToken"]} if token else {})}


def get_log_events(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """GetLogEvents. A token is a direction, and the place in the log up to which it has been read."""
    _check_group("GetLogEvents", params)
    stream = _stream(params["logStreamName"], region)
    log = stream.log
    direction, place = _place_of(params.get("nextToken"))
    if not direction:
        direction = "f" if params.get("startFromHead") else "b"
        place = 0 if direction == "f" else log.size
    if direction == "f":
        events, first, last = _page_forward(stream, place, params)
    else:
        events, first, last = _page_backward(stream, place, params)
    return {
        "events": [_event_row(event) for event in events],
        "nextForwardToken": f"f/{last:056d}",
        "nextBackwardToken": f"b/{first:056d}",
    }


def filter_log_events(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """FilterLogEvents, over all streams in order of time."""
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
    found, token = _find_events(streams, params)
    return {
        "events": [
            {**_event_row(event), "logStreamName": stream.name, "eventId": event_id(stream, event)}
            for stream, event in found
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
    for event in stream.log.events(start, stream.is_over):
        if len(events) >= limit or size + size_of_event(event) > MOST_BYTES:
            break
        if until is not None and event.time_ms >= until:
            break
        place = event.end
        if event.time_ms >= since:
            events.append(event)
            size += size_of_event(event)
    return events, events[0].start if events else place, place


def _page_backward(stream: JobStream, place: int, params: dict[str, Any]) -> tuple[list[LogLine], int, int]:
    """Return the last events before a place, where they begin, and where they end."""
    since, until = params.get("startTime", 0), params.get("endTime")
    limit = params.get("limit", MOST_EVENTS)
    log = stream.log
    end = min(place, log.boundary(until, stream.is_over)) if until is not None else place
    # more than one answer may hold need not be read
    earliest = log.line_start(max(0, end - MOST_BYTES))
    start = max(log.start_of_last(limit, end), earliest, stream.start(since))
    events: deque[LogLine] = deque()
    size = 0
    for event in log.events(start, stream.is_over):
        if event.start >= end:
            break
        if event.time_ms < since:
            continue
        events.append(event)
        size += size_of_event(event)
        while len(events) > limit or size > MOST_BYTES:
            size -= size_of_event(events.popleft())
    if not events:
        return [], place, min(start, place)  # and not in the midst of a line that is being written
    return list(events), events[0].start, events[-1].end


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
    name, slash, rest = prefix.partition("/")
    jobs = [job for job in jobs_of(region) if (job.name == name if slash else job.name.startswith(name))]
    streams = []
    for job in jobs:
        try:
            files = sorted(os.listdir(job.file("logs")))
        except FileNotFoundError:  # deleted just now
            continue
        names = [
            file.removesuffix(".log") for file in files if file.endswith(".log") and file.startswith(rest)
        ]
        is_over = bool(names) and _is_over(job)
        streams += [JobStream(job, name, is_over) for name in names]
    return streams


def _stream(full: str, region: str) -> JobStream:
    name, _, stream = full.partition("/")
    job = find_job(name, region)
    is_name = stream and "/" not in stream and not stream.startswith(".")
    if job is not None and is_name and os.path.exists(job.file("logs", f"{stream}.log")):
        return JobStream(job, stream, _is_over(job))
    raise ApiError("ResourceNotFoundException", "The specified log stream does not exist.")


def _stream_row(stream: JobStream) -> dict[str, Any]:
    row = {
        "logStreamName": stream.name,
        "creationTime": stream.log.created_ms,
        "arn": f"{_arn(stream)}:log-stream:{stream.name}",
        "storedBytes": 0,  # nor does the service tell it any more
    }
    span = stream.log.span()
    if span is not None:
        row.update(firstEventTimestamp=span[0], lastEventTimestamp=span[1], lastIngestionTime=span[1])
    return row


def _arn(stream: JobStream) -> str:
    """Return the group's ARN in the account that a stream's job belongs to."""
    _, partition, _, region, account, _ = f"{(stream.job.read_request() or {}).get('arn', '')}:::::".split(
        ":", 5
    )
    return f"arn:{partition or 'aws'}:logs:{region}:{account}:log-group:{GROUP}"


def _event_row(event: LogLine) -> dict[str, Any]:
    return {
        "timestamp": event.time_ms,
        "message": message_of(event),
        "ingestionTime": min(event.time_ms, time.time_ns() // 1_000_000),
    }


def _place_of(token: str | None) -> tuple[str, int]:
    if not token:
        return "", 0
    direction, _, place = token.partition("/")
    if direction not in ("f", "b") or not place.isascii() or not place.isdecimal() or len(place) > 56:
        raise _wrong("The specified nextToken is invalid.")
    return direction, int(place)


def _wrong(message: str) -> ApiError:
    return ApiError("InvalidParameterException", message)


def _is_over(job: TrainingJob) -> bool:
    state = current_state(job)
    return state is None or state["status"] in TERMINAL


# ---- searching


def _find_events(
    streams: list[JobStream], params: dict[str, Any]
) -> tuple[list[tuple[JobStream, LogLine]], str]:
    """Return a page of events, and the token of the next one, or "".

    Raises:
        ApiError: the token is invalid.
    """
    since, until, limit = params.get("startTime", 0), params.get("endTime"), params.get("limit", MOST_EVENTS)
    after = _key_of(params["nextToken"]) if params.get("nextToken") else None
    found: list[tuple[JobStream, LogLine]] = []
    size = 0
    last = ""
    for key, stream, event in _in_order(streams, max(since, after[0] if after else 0)):
        if until is not None and event.time_ms > until:
            break
        if after is not None and key <= after:
            continue
        size += size_of_event(event)
        if len(found) >= limit or size > MOST_BYTES:
            return found, last
        found.append((stream, event))
        last = "{0}/{2}/{1}".format(*key)
    return found, ""


def _in_order(streams: list[JobStream], since: int) -> Iterator[tuple[Key, JobStream, LogLine]]:
    """Yield the events of all streams from a time on. A log is opened when its turn comes, not before."""
    waiting = sorted(streams, key=lambda stream: (stream.log.created_ms, stream.name), reverse=True)
    active: list[_NextEvent] = []
    while active or waiting:
        while waiting and (not active or waiting[-1].log.created_ms <= active[0][0][0]):
            stream = waiting.pop()
            _advance(active, stream, _events(stream, since))
        if active:
            key, event, stream, rest = heapq.heappop(active)
            yield key, stream, event
            _advance(active, stream, rest)


def _advance(active: list[_NextEvent], stream: JobStream, rest: Iterator[LogLine]) -> None:
    event = next(rest, None)
    if event is not None:
        key = (event.time_ms, stream.name, event.start)  # no two are equal, so nothing else is compared
        heapq.heappush(active, (key, event, stream, rest))


def _events(stream: JobStream, since: int) -> Iterator[LogLine]:
    events = stream.log.events(stream.start(since), stream.is_over)
    return (event for event in events if event.time_ms >= since)


def size_of_event(event: LogLine) -> int:
    """Return how much an event counts in an answer."""
    return len(event.data) + EVENT_BYTES


def message_of(event: LogLine) -> str:
    """Return an event's text, without the end of its line."""
    return event.data.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")


def event_id(stream: JobStream, event: LogLine) -> str:
    """Return an id that no other event has; clients that follow rely on it."""
    number = int.from_bytes(hashlib.sha256(stream.name.encode()).digest()[:8], "big")
    return f"{number:020d}{event.start:036d}"


def _key_of(token: str) -> Key:
    time_ms, _, rest = token.partition("/")
    place, _, name = rest.partition("/")
    for number in (time_ms, place):
        if not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise _wrong("The specified nextToken is invalid.")
    return int(time_ms), name, int(place)
