"""CloudWatch Logs' reading operations on the logs of local jobs."""

from __future__ import annotations

import os
import time
from typing import Any

from trainyard.schedulers.aws.sagemaker_local import store, validation
from trainyard.schedulers.aws.sagemaker_local.answers import page_of
from trainyard.schedulers.aws.sagemaker_local.errors import ApiError
from trainyard.schedulers.aws.sagemaker_local.logs import Event, Log, log_path
from trainyard.schedulers.aws.sagemaker_local.recovery import current_state
from trainyard.schedulers.aws.sagemaker_local.store import TERMINAL, JobDir

GROUP = "/aws/sagemaker/TrainingJobs"
MOST_EVENTS = 10_000
MOST_BYTES = 1 << 20
#: CloudWatch counts so much for an event beside its text.
EVENT_BYTES = 26


class LocalLogs:
    """The log group of training jobs."""

    def describe_log_streams(self, params: dict[str, Any]) -> dict[str, Any]:
        """DescribeLogStreams."""
        _check_group("DescribeLogStreams", params)
        prefix = params.get("logStreamNamePrefix", "")
        rows = [_stream_row(job, name) for job, name in _streams(prefix)]
        by_time = params.get("orderBy") == "LastEventTime"
        rows.sort(key=lambda row: row["logStreamName"])
        if by_time:
            rows.sort(key=lambda row: row.get("lastEventTimestamp", 0))
        if params.get("descending"):
            rows.reverse()
        page, token = page_of(rows, params, "limit", 50)
        return {"logStreams": page, **_lower(token)}

    def get_log_events(self, params: dict[str, Any]) -> dict[str, Any]:
        """GetLogEvents. A token is the place in the log up to which it has been read."""
        _check_group("GetLogEvents", params)
        job, log = _stream(params["logStreamName"])
        is_over = _is_over(job)
        limit = min(params.get("limit", MOST_EVENTS), MOST_EVENTS)
        direction, place = _place_of(params.get("nextToken"))
        if direction == "b" or (direction == "" and not params.get("startFromHead")):
            end = place if direction == "b" else log.size
            start = log.start_of_last(limit, end)
            events, reached = _collect(log, start, end, is_over, params, None)
            events = _last(events)
        else:
            start = place
            events, reached = _collect(log, start, None, is_over, params, limit)
        first = events[0].start if events else start
        return {
            "events": [_row(event) for event in events],
            "nextForwardToken": f"f/{reached:056d}",
            "nextBackwardToken": f"b/{first:056d}",
        }

    def filter_log_events(self, params: dict[str, Any]) -> dict[str, Any]:
        """FilterLogEvents; a pattern of plain words only."""
        _check_group("FilterLogEvents", params)
        words = _words(params.get("filterPattern", ""))
        names = params.get("logStreamNames")
        prefix = params.get("logStreamNamePrefix", "")
        found = []
        for job, name in _streams(prefix):
            full = f"{job.name}/{name}"
            if names is None or full in names:
                events, _ = _collect(Log(log_path(job, name)), 0, None, _is_over(job), params, None)
                for event in events:
                    row = _row(event)
                    if all(word in row["message"] for word in words):
                        found.append({**row, "logStreamName": full, "eventId": f"{event.start:056d}"})
        found.sort(key=lambda row: row["timestamp"])
        page, token = page_of(found, params, "limit", MOST_EVENTS)
        return {
            "events": page,
            "searchedLogStreams": [],
            **_lower(token),
        }


def _check_group(operation: str, params: dict[str, Any]) -> None:
    try:
        validation.check(operation, params, "logs")
    except ApiError as error:
        raise ApiError("InvalidParameterException", error.message) from None
    if params.get("logGroupName", params.get("logGroupIdentifier", "").rpartition("log-group:")[2]) != GROUP:
        raise ApiError("ResourceNotFoundException", "The specified log group does not exist.")


def _lower(token: dict[str, str]) -> dict[str, str]:
    """Return the token of the next page as this service names it."""
    return {"nextToken": token["NextToken"]} if token else {}


def _words(pattern: str) -> list[str]:
    if not pattern.strip():
        return []
    if pattern.startswith('"') and pattern.endswith('"') and len(pattern) > 1:
        return [pattern[1:-1]]
    if pattern[0] in "{[?-%":
        raise ApiError("InvalidParameterException", "filterPattern: only plain words are understood here")
    return pattern.split()


def _streams(prefix: str) -> list[tuple[JobDir, str]]:
    name, slash, rest = prefix.partition("/")
    jobs = [job for job in store.all_jobs() if (job.name == name if slash else job.name.startswith(name))]
    found = []
    for job in jobs:
        found += [
            (job, file.removesuffix(".log"))
            for file in sorted(os.listdir(job.file("logs")))
            if file.endswith(".log") and file.startswith(rest)
        ]
    return found


def _stream(full: str) -> tuple[JobDir, Log]:
    name, _, stream = full.partition("/")
    job = store.find(name)
    if job is not None and stream and "/" not in stream and not stream.startswith("."):
        log = Log(log_path(job, stream))
        if os.path.exists(f"{log.path}.log"):
            return job, log
    raise ApiError("ResourceNotFoundException", "The specified log stream does not exist.")


def _stream_row(job: JobDir, name: str) -> dict[str, Any]:
    log = Log(log_path(job, name))
    times = log.times()
    region, account = "us-east-1", "000000000000"
    document = job.read_request()
    if document is not None:
        region, account = document["arn"].split(":")[3:5]
    full = f"{job.name}/{name}"
    row = {
        "logStreamName": full,
        "creationTime": log.created_ms,
        "arn": f"arn:aws:logs:{region}:{account}:log-group:{GROUP}:log-stream:{full}",
        "storedBytes": 0,
    }
    if times:
        row.update(
            firstEventTimestamp=times[0][1], lastEventTimestamp=times[-1][1], lastIngestionTime=times[-1][1]
        )
    return row


def _collect(
    log: Log, start: int, end: int | None, is_over: bool, params: dict[str, Any], limit: int | None
) -> tuple[list[Event], int]:
    """Return the events from a place on, and the place up to which the log has been read."""
    since, until = params.get("startTime", 0), params.get("endTime")
    events: list[Event] = []
    size = 0
    for event in log.events(start, is_over):
        if end is not None and event.start >= end:
            break
        if limit is not None and (len(events) >= limit or size + len(event.data) + EVENT_BYTES > MOST_BYTES):
            break
        if until is not None and event.time_ms >= until:
            break
        start = event.end
        if event.time_ms >= since:
            events.append(event)
            size += len(event.data) + EVENT_BYTES
    return events, start


def _last(events: list[Event]) -> list[Event]:
    """Return as many of the last events as one answer may hold."""
    size = 0
    for count, event in enumerate(reversed(events)):
        size += len(event.data) + EVENT_BYTES
        if count >= MOST_EVENTS or size > MOST_BYTES:
            return events[len(events) - count :]
    return events


def _row(event: Event) -> dict[str, Any]:
    text = event.data.decode("utf-8", "replace")
    return {
        "timestamp": event.time_ms,
        "message": text.removesuffix("\n").removesuffix("\r"),
        "ingestionTime": min(event.time_ms, time.time_ns() // 1_000_000),
    }


def _place_of(token: str | None) -> tuple[str, int]:
    if not token:
        return "", 0
    direction, _, place = token.partition("/")
    if direction not in ("f", "b") or not place.isdecimal():
        raise ApiError("InvalidParameterException", "The specified nextToken is invalid.")
    return direction, int(place)


def _is_over(job: JobDir) -> bool:
    state = current_state(job)
    return state is None or state["status"] in TERMINAL
