"""CloudWatch Logs' reading operations on the logs of local jobs."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Container, Iterator
from typing import Any

from trainyard.schedulers.aws.sagemaker_local.endpoint import validation
from trainyard.schedulers.aws.sagemaker_local.endpoint.answers import find_job, jobs_of, page_of
from trainyard.schedulers.aws.sagemaker_local.endpoint.errors import ApiError
from trainyard.schedulers.aws.sagemaker_local.endpoint.live_sessions import session
from trainyard.schedulers.aws.sagemaker_local.endpoint.log_search import (
    MOST_BYTES,
    MOST_EVENTS,
    Query,
    Stream,
    event_id,
    find,
    message_of,
    size_of_event,
)
from trainyard.schedulers.aws.sagemaker_local.endpoint.patterns import matcher
from trainyard.schedulers.aws.sagemaker_local.job_status import TERMINAL
from trainyard.schedulers.aws.sagemaker_local.logs import LogLine
from trainyard.schedulers.aws.sagemaker_local.training_job import TrainingJob
from trainyard.schedulers.exec.process.recovery import current_state

GROUP = "/aws/sagemaker/TrainingJobs"


class LocalLogs:
    """The log group of training jobs."""

    def describe_log_groups(self, params: dict[str, Any], region: str = "") -> dict[str, Any]:
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

    def start_live_tail(self, params: dict[str, Any], region: str = "") -> Iterator[bytes]:
        """StartLiveTail."""
        _check("StartLiveTail", params)
        groups = params["logGroupIdentifiers"]
        names, prefixes = params.get("logStreamNames"), params.get("logStreamNamePrefixes")
        if not all(group.startswith("arn:") for group in groups):
            raise _wrong("logGroupIdentifiers are ARNs of log groups.")
        if names and prefixes:
            raise _wrong("logStreamNames and logStreamNamePrefixes cannot be given both.")
        if (names or prefixes) and len(groups) > 1:
            raise _wrong("logStreamNames and logStreamNamePrefixes are for one log group.")
        if any(_group_of(group) != GROUP for group in groups):
            raise ApiError("ResourceNotFoundException", "The specified log group does not exist.")
        wanted = tuple(prefixes or names or [""])

        def look(over: set[str]) -> list[Stream]:
            found = {
                stream.name: stream for prefix in wanted for stream in _streams(prefix, region, skipped=over)
            }
            return [stream for name, stream in found.items() if not names or name in names]

        return session(params, look, matcher(params.get("logEventFilterPattern", "")))

    def describe_log_streams(self, params: dict[str, Any], region: str = "") -> dict[str, Any]:
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

    def get_log_events(self, params: dict[str, Any], region: str = "") -> dict[str, Any]:
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
            "events": [_row(event) for event in events],
            "nextForwardToken": f"f/{last:056d}",
            "nextBackwardToken": f"b/{first:056d}",
        }

    def filter_log_events(self, params: dict[str, Any], region: str = "") -> dict[str, Any]:
        """FilterLogEvents, over all streams in order of time."""
        _check_group("FilterLogEvents", params)
        names, prefix = params.get("logStreamNames"), params.get("logStreamNamePrefix", "")
        if names and prefix:
            raise _wrong("logStreamNames and logStreamNamePrefix cannot be given both.")
        if params.get("startFromHead") is False:
            raise _wrong("startFromHead=false: this machine shows the earliest events first.")
        streams = (
            [_stream(name, region) for name in dict.fromkeys(names)] if names else _streams(prefix, region)
        )
        query = Query(
            matches=matcher(params.get("filterPattern", "")),
            since=params.get("startTime", 0),
            until=params.get("endTime"),
            limit=params.get("limit", MOST_EVENTS),
            after=params.get("nextToken"),
        )
        found, token = find(streams, query)
        return {
            "events": [
                {**_row(event), "logStreamName": stream.name, "eventId": event_id(stream, event)}
                for stream, event in found
            ],
            "searchedLogStreams": [],
            **({"nextToken": token} if token else {}),
        }


def _page_forward(stream: Stream, place: int, params: dict[str, Any]) -> tuple[list[LogLine], int, int]:
    """Return the events from a place on, where they begin, and the place up to which the log was read."""
    since, until = params.get("startTime", 0), params.get("endTime")
    limit = params.get("limit", MOST_EVENTS)
    events: list[LogLine] = []
    size = 0
    start = max(place, stream.log.line_start(_boundary(stream, since)) if since else 0)
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


def _page_backward(stream: Stream, place: int, params: dict[str, Any]) -> tuple[list[LogLine], int, int]:
    """Return the last events before a place, where they begin, and where they end."""
    since, until = params.get("startTime", 0), params.get("endTime")
    limit = params.get("limit", MOST_EVENTS)
    log = stream.log
    end = min(place, _boundary(stream, until)) if until is not None else place
    # more than one answer may hold need not be read
    start = max(log.start_of_last(limit, end), log.line_start(max(0, end - MOST_BYTES)))
    if since:
        start = max(start, log.line_start(_boundary(stream, since)))
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


def _boundary(stream: Stream, time_ms: int) -> int:
    return stream.log.boundary(time_ms, stream.is_over)


def _check_group(operation: str, params: dict[str, Any]) -> None:
    _check(operation, params)
    if params.get("logGroupName", _group_of(params.get("logGroupIdentifier", ""))) != GROUP:
        raise ApiError("ResourceNotFoundException", "The specified log group does not exist.")


def _check(operation: str, params: dict[str, Any]) -> None:
    try:
        validation.check(operation, params, "logs")
    except ApiError as error:
        raise error if error.code == "SerializationException" else _wrong(error.message) from None


def _group_of(identifier: str) -> str:
    """Return the name of a log group that is given by its ARN, or its name."""
    return identifier.rpartition("log-group:")[2]


def _streams(prefix: str, region: str, skipped: Container[str] = ()) -> list[Stream]:
    """Return the streams whose names begin so, but for those of some jobs."""
    name, slash, rest = prefix.partition("/")
    jobs = [job for job in jobs_of(region) if (job.name == name if slash else job.name.startswith(name))]
    found = []
    for job in jobs:
        if job.name in skipped:
            continue
        try:
            files = sorted(os.listdir(job.file("logs")))
        except FileNotFoundError:  # deleted just now
            continue
        wanted = [file for file in files if file.endswith(".log") and file.startswith(rest)]
        is_over = _is_over(job) if wanted else True
        found += [Stream.of(job, file.removesuffix(".log"), is_over=is_over) for file in wanted]
    return found


def _stream(full: str, region: str) -> Stream:
    name, _, stream = full.partition("/")
    job = find_job(name, region)
    is_name = stream and "/" not in stream and not stream.startswith(".")
    if job is not None and is_name and os.path.exists(job.file("logs", f"{stream}.log")):
        return Stream.of(job, stream, is_over=_is_over(job))
    raise ApiError("ResourceNotFoundException", "The specified log stream does not exist.")


def _stream_row(stream: Stream) -> dict[str, Any]:
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


def _arn(stream: Stream) -> str:
    """Return the ARN of the group, as the account has it that a stream's job is of."""
    _, partition, _, region, account, _ = f"{stream.job_arn()}:::::".split(":", 5)
    return f"arn:{partition or 'aws'}:logs:{region}:{account}:log-group:{GROUP}"


def _row(event: LogLine) -> dict[str, Any]:
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
