from __future__ import annotations

import threading

import pytest

from shunter.backoff import FIRST_POLL, LONGEST_POLL, Backoff, polling, retry_after
from tests.aws.clock import FakeClock


def delays_of(backoff: Backoff, clock: FakeClock) -> list[float]:
    """Pause until there are no attempts or no time left; return how long each pause took."""
    found = []
    while True:
        before = clock.elapsed
        if not backoff.pause():
            return found
        found.append(clock.elapsed - before)


def test_delays_grow_up_to_the_limit() -> None:
    clock = FakeClock()
    backoff = Backoff(0.5, 10, jitter=0, limit=30, clock=clock)
    assert delays_of(backoff, clock) == [0.5, 1, 2, 4, 8, 10, 4.5]
    assert (backoff.elapsed(), backoff.left()) == (30, 0)


def test_delays_without_a_longest_are_all_the_same() -> None:
    clock = FakeClock()
    assert delays_of(Backoff(0.25, jitter=0, limit=1, clock=clock), clock) == [0.25] * 4


def test_attempts_come_to_an_end() -> None:
    clock = FakeClock()
    assert delays_of(Backoff(1, 8, jitter=0, attempts=4, clock=clock), clock) == [1, 2, 4]


def test_the_limit_counts_from_the_first_failure_or_from_the_start() -> None:
    clock = FakeClock()
    late, early = Backoff(1, limit=5, clock=clock), Backoff(1, limit=5, clock=clock).start()
    clock.advance(6)
    assert late.pause()
    assert not early.pause()


def test_progress_forgets_the_failures() -> None:
    clock = FakeClock()
    backoff = Backoff(0.5, 10, jitter=0, limit=2, clock=clock)
    assert backoff.pause()
    assert backoff.pause()
    backoff.reset()
    assert backoff.left() == 2
    assert backoff.delay() == 0.5


def test_the_other_side_may_ask_for_more() -> None:
    clock = FakeClock()
    backoff = Backoff(1, limit=10, clock=clock)
    assert backoff.pause(at_least=7)
    assert clock.elapsed == 7
    assert not backoff.pause(at_least=7)
    assert clock.elapsed == 7


def test_jitter() -> None:
    for failures in range(50):
        longest = min(20, 0.5 * 2**failures)
        found = set()
        for _ in range(20):
            backoff = Backoff(0.5, 20)
            backoff.failures = failures
            found.add(backoff.delay())
        assert len(found) > 1
        assert all(longest / 2 <= delay <= longest for delay in found)


def test_an_event_ends_a_delay() -> None:
    stop = threading.Event()
    stop.set()
    assert Backoff(3600, stop=stop).pause()


def test_polling() -> None:
    assert not polling(0).pause()
    polls = polling()
    delays = [polls.delay() for _ in range(20)]
    assert (delays[0], delays[-1]) == (FIRST_POLL, LONGEST_POLL)
    assert delays == sorted(delays)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        (" 5 ", 5),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0),
        ("soon", 0),
        ("-5", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_retry_after(header: str | None, seconds: float) -> None:
    assert retry_after(header, now=10.0) == seconds
