"""Sessions of StartLiveTail: what jobs write from its beginning on, as events of one answer.

Unlike on the service nothing is sampled: of many lines there are more updates.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from trainyard.schedulers.aws.sagemaker_local.endpoint import eventstream
from trainyard.schedulers.aws.sagemaker_local.endpoint.log_search import Stream, message_of
from trainyard.schedulers.aws.sagemaker_local.logs import Log, LogLine

SECONDS_BETWEEN_UPDATES = 1.0
#: The service ends a session then.
LONGEST_SESSION = 3 * 3600.0
MOST_EVENTS = 500

#: Gives the streams that are looked at, those of jobs that are known to be over left out.
Look = Callable[[set[str]], list[Stream]]


def session(params: dict[str, Any], look: Look, matches: Callable[[str], bool]) -> Iterator[bytes]:
    """Yield the events of a session, encoded.

    Args:
        params: of the operation.
        look: gives the streams.
        matches: whether a message is wanted.
    """
    group = params["logGroupIdentifiers"][0]
    places, over = _ends(look)
    yield eventstream.event(eventstream.INITIAL_RESPONSE, {})
    names = ("logGroupIdentifiers", "logStreamNames", "logStreamNamePrefixes", "logEventFilterPattern")
    start = {"requestId": str(uuid.uuid4()), "sessionId": str(uuid.uuid4())}
    given = {name: params[name] for name in names if name in params}
    yield eventstream.event("sessionStart", {**start, **given})
    deadline = time.monotonic() + LONGEST_SESSION
    while time.monotonic() < deadline:
        found = _fresh(look, places, over)
        rows = [_row(group, *pair) for pair in found if matches(message_of(pair[1]))]
        for place in range(0, max(len(rows), 1), MOST_EVENTS):
            page = rows[place : place + MOST_EVENTS]
            content = {"sessionMetadata": {"sampled": False}, "sessionResults": page}
            yield eventstream.event("sessionUpdate", content)
        time.sleep(SECONDS_BETWEEN_UPDATES)
    yield eventstream.exception("SessionTimeoutException", "The Live Tail session has timed out.")


def _ends(look: Look) -> tuple[dict[str, int], set[str]]:
    """Return where the last whole lines of all streams end now, and which jobs are over."""
    places, over = {}, set()
    for stream in look(set()):
        places[stream.name] = _last_end(stream.log)
        if stream.is_over:
            over.add(stream.job.name)
    return places, over


def _last_end(log: Log) -> int:
    size = log.size
    if not size:
        return 0
    with open(f"{log.path}.log", "rb") as file:
        file.seek(size - 1)
        is_whole = file.read(1) == b"\n"
    return size if is_whole else log.line_start(size)


def _fresh(look: Look, places: dict[str, int], over: set[str]) -> list[tuple[Stream, LogLine]]:
    """Return what has been written since the last look, in order of time."""
    found: list[tuple[Stream, LogLine]] = []
    for stream in look(over):
        try:
            for event in stream.log.events(places.get(stream.name, 0), stream.is_over):
                places[stream.name] = event.end
                found.append((stream, event))
        except FileNotFoundError:  # deleted just now
            continue
        if stream.is_over:
            over.add(stream.job.name)
    return sorted(found, key=lambda pair: (pair[1].time_ms, pair[0].name, pair[1].start))


def _row(group: str, stream: Stream, event: LogLine) -> dict[str, Any]:
    return {
        "logStreamName": stream.name,
        "logGroupIdentifier": ":".join(group.split(":")[4:5] + group.split(":log-group:")[1:]),
        "message": message_of(event),
        "timestamp": event.time_ms,
        "ingestionTime": min(event.time_ms, time.time_ns() // 1_000_000),
    }
