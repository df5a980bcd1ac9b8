"""A cursor against the fake's service itself, without HTTP: whatever comes when, each event is given once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.schedulers.aws.cloudwatch_calls import (
    CloudWatchEvent,
    LogCalls,
    MissingStreamError,
    RateLimit,
    StaleTokenError,
)
from shunter.schedulers.aws.cloudwatch_cursor import StreamCursor
from tests.aws.clock import FakeClock
from tests.aws.fake.logs import Logs
from tests.aws.fake.wire import ApiError


class Direct(LogCalls):
    """Calls the fake's service as if it were a client."""

    def __init__(self, logs: Logs, clock: FakeClock) -> None:
        super().__init__(None, "group", RateLimit(1e9, 1, clock), clock)
        self._logs = logs

    def call(self, method: str, members: tuple[str, ...], params: dict[str, Any], patience: float = 0) -> Any:
        try:
            return getattr(self._logs, method)(params)
        except ApiError as error:
            if "nextToken" in error.message:
                raise StaleTokenError from error
            raise MissingStreamError from error


# Few times and texts, so that many are equal.
EVENTS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc")), max_size=8)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), EVENTS),
        st.tuples(st.just("hide"), EVENTS),
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.tuples(st.just("begin"), st.booleans()),
        st.tuples(st.just("wait"), st.just(0)),
    ),
    max_size=25,
)


def drain(cursor: StreamCursor, found: list[CloudWatchEvent]) -> None:
    for _ in range(200):
        events, is_end = cursor.read()
        found += events
        if is_end:
            return
    raise AssertionError("no end")


@pytest.mark.slow
@given(STEPS, st.integers(1, 5), st.integers(0, 3), st.integers(0, 6), st.none() | st.integers(6, 12))
def test_each_event_once(
    steps: list[Any], page: int, empty_every: int, since: int, until: int | None
) -> None:
    clock = FakeClock()
    logs = Logs(clock.time)
    logs.page_events, logs.empty_every = page, empty_every if empty_every != 1 else 0
    cursor = StreamCursor(Direct(logs, clock), "s", since, until, 1000, 1000)
    cursor.begin(full=True)
    written: list[tuple[int, str]] = []
    found: list[CloudWatchEvent] = []
    for what, detail in steps:
        if what in ("put", "hide"):
            logs.put("group", "s", detail, visible_after=5 if what == "hide" else 0)
            written += detail
        elif what == "read":
            for _ in range(detail):
                found += cursor.read()[0]
        elif what == "begin":
            cursor.begin(full=detail)
        else:
            clock.advance(3)
    clock.advance(10)
    drain(cursor, found)
    cursor.begin(full=True)
    drain(cursor, found)
    wanted = [(t, m) for t, m in written if t >= since and (until is None or t < until)]
    assert sorted((event.time, event.message) for event in found) == sorted(wanted)


@given(EVENTS, EVENTS, st.integers(0, 10), st.integers(1, 5), st.integers(0, 3))
def test_the_last_and_what_comes_after(
    before: list[tuple[int, str]],
    after: list[tuple[int, str]],
    count: int,
    page: int,
    empty_every: int,
) -> None:
    """Reading on after the last lines gives what is new, and of what was there nothing again."""
    clock = FakeClock()
    logs = Logs(clock.time)
    logs.page_events, logs.empty_every = page, empty_every if empty_every != 1 else 0
    logs.put("group", "s", before)
    cursor = StreamCursor(Direct(logs, clock), "s", 0, None, 1000, 1000)
    last = cursor.read_back(count, lambda event: [event.message.encode()])
    in_order = [m.encode() for _, m in sorted(before, key=lambda event: event[0])]
    assert last == (in_order[-count:] if count else [])
    late = [event for event in after if event[0] < max((t for t, _ in before), default=0)]
    logs.put("group", "s", after)
    found: list[CloudWatchEvent] = []
    cursor.begin(full=True)
    drain(cursor, found)
    given_out = sorted((event.time, event.message) for event in found)
    assert set(given_out) <= set(after)
    on_time = sorted(event for event in after if event not in late)
    assert [event for event in given_out if event not in late] == on_time


def test_a_full_memory_forgets_the_oldest_only() -> None:
    clock = FakeClock()
    logs = Logs(clock.time)
    cursor = StreamCursor(Direct(logs, clock), "s", 0, None, 1000, 100)
    logs.put("group", "s", [(i, f"{i}") for i in range(5000)])
    found: list[CloudWatchEvent] = []
    cursor.begin(full=True)
    drain(cursor, found)
    logs.put("group", "s", [(4999, "4999"), (4990, "late"), (10, "too late to be distinguished")])
    cursor.begin(full=True)
    drain(cursor, found)
    assert [event.message for event in found] == [*(f"{i}" for i in range(5000)), "late", "4999"]
