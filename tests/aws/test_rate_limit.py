from __future__ import annotations

import threading

import pytest

from shunter.schedulers.aws.cloudwatch_calls import LEAST_RATE, RateLimit, ReadingStoppedError
from tests.aws.clock import FakeClock


def seconds_for(rate_limit: RateLimit, clock: FakeClock, calls: int) -> float:
    start = clock.elapsed
    for _ in range(calls):
        rate_limit.wait_for_turn(threading.Event())
    return clock.elapsed - start


def test_calls_are_spread_after_a_burst() -> None:
    clock = FakeClock()
    rate_limit = RateLimit(4.0, 8, clock)
    assert seconds_for(rate_limit, clock, 8) == 0
    assert seconds_for(rate_limit, clock, 40) == pytest.approx(10)
    clock.advance(100)
    assert seconds_for(rate_limit, clock, 8) == pytest.approx(0)
    assert seconds_for(rate_limit, clock, 4) == pytest.approx(1)


def test_throttling_lowers_the_rate_and_success_restores_it() -> None:
    clock = FakeClock()
    rate_limit = RateLimit(8.0, 1, clock)
    for _ in range(3):
        rate_limit.throttled()
    seconds_for(rate_limit, clock, 1)
    assert seconds_for(rate_limit, clock, 10) == pytest.approx(10 / (8 * 0.8**3))
    for _ in range(100):
        rate_limit.throttled()
    assert rate_limit.rate == LEAST_RATE
    rates = [rate_limit.rate]
    for _ in range(200):
        rate_limit.succeeded()
        rates.append(rate_limit.rate)
    assert rates == sorted(rates)
    assert rate_limit.rate == 8.0


def test_stopping_ends_a_wait() -> None:
    clock = FakeClock()
    rate_limit = RateLimit(1.0, 1, clock)
    stop = threading.Event()
    rate_limit.wait_for_turn(stop)
    rate_limit.wait_for_turn(stop)
    assert clock.elapsed == pytest.approx(1)
    clock.at(1.5, stop.set)
    with pytest.raises(ReadingStoppedError):
        rate_limit.wait_for_turn(stop)
