"""Calls in a few threads: their order, and what a failure or Ctrl-C does to the others."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from shunter.parallel import for_all


def test_results_come_in_the_order_of_the_items() -> None:
    both = threading.Barrier(2)

    def double(number: int) -> int:
        both.wait(10)  # which needs two at once
        return 2 * number

    assert for_all(double, range(6), workers=2) == [0, 2, 4, 6, 8, 10]
    assert for_all(double, []) == []


def test_after_a_failure_no_call_begins_and_those_that_have_begun_end() -> None:
    failed = threading.Event()
    begun: list[int] = []
    ended: list[int] = []

    def call(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise ValueError("one is refused")
        assert failed.wait(10)
        ended.append(number)

    with pytest.raises(ValueError, match="one is refused"):
        for_all(call, range(50), workers=2, on_failure=failed.set)
    assert 1 in begun
    assert len(begun) < 50
    assert set(ended) == set(begun) - {1}


def test_ctrl_c_waits_for_the_calls_that_have_begun() -> None:
    interrupted = threading.Event()
    ended: list[int] = []

    def call(number: int) -> None:
        if number == 0:
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupted.wait(10)
        ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        for_all(call, range(50), workers=2, on_failure=interrupted.set)
    assert 0 in ended
    assert len(ended) < 50


def test_a_single_call_is_shielded_on_demand() -> None:
    main = threading.get_ident()
    assert for_all(lambda _: threading.get_ident(), [0]) == [main]
    assert for_all(lambda _: threading.get_ident(), [0], shielded=True) != [main]
