"""Calls with several arguments at once, in a few threads, safe against Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

R = TypeVar("R")

WORKERS = 8
#: How many times Ctrl-C is noted while the calls that have begun are still waited for; the next one aborts.
PATIENT_INTERRUPTIONS = 2


def for_all(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    shielded: bool = False,
    workers: int = WORKERS,
    on_failure: Callable[[], object] = lambda: None,
) -> list[R]:
    """Call a function with every item and return the results, in order.

    After a failure or Ctrl-C no further call begins; those that have begun are waited for.
    (`concurrent.futures` would not do: an interrupted `Thread.join` considers its thread ended.)

    Args:
        function: what to call.
        items: the arguments.
        shielded: make a single call in a thread too, so that Ctrl-C cannot interrupt it.
        workers: how many calls are made at the same time.
        on_failure: called after the first failure or Ctrl-C, to make the calls that have begun end soon.

    Raises:
        Exception: the first one that a call raised.
    """
    work = list(items)
    if len(work) < 2 and not shielded:
        return [function(item) for item in work]
    condition = threading.Condition()
    positions = iter(range(len(work)))
    results: dict[int, R] = {}
    errors: list[BaseException] = []
    running = 0

    def run() -> None:
        nonlocal running
        while True:
            with condition:
                position = None if errors else next(positions, None)
                if position is None:
                    return
                running += 1
            error: BaseException | None = None
            try:
                result = function(work[position])
            except BaseException as raised:
                error = raised
            with condition:
                if error is None:
                    results[position] = result
                else:
                    errors.append(error)
                    is_first = len(errors) == 1
            if error is not None and is_first:
                on_failure()
            with condition:
                running -= 1
                condition.notify_all()

    interruptions = 0
    starts = iter(range(min(workers, len(work))))
    while True:
        try:
            for _ in starts:
                threading.Thread(target=run, daemon=True).start()
            with condition:
                condition.wait_for(lambda: not running and (bool(errors) or len(results) == len(work)))
            break
        except BaseException as interruption:  # Ctrl-C, or no more threads
            starts = iter(())
            with condition:
                errors.insert(0, interruption)
            on_failure()
            interruptions += 1
            if interruptions > PATIENT_INTERRUPTIONS:
                raise
    if errors:
        raise errors[0]
    return [results[position] for position in range(len(work))]
