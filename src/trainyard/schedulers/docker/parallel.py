"""Doing the same for several things at once, in a few threads."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    T = TypeVar("T")
    R = TypeVar("R")

WORKERS = 8


def for_all(function: Callable[[T], R], items: Iterable[T], *, shielded: bool = False) -> list[R]:
    """Call a function with every item and return the results, in order.

    After a failure, or Ctrl-C, nothing more is begun; what is under way is waited for.

    Args:
        function: what to call.
        items: with what.
        shielded: make the calls in threads even if there is one alone, so that Ctrl-C cannot break it off.

    Raises:
        Exception: the first one that a call raised.
    """
    work = list(items)
    if len(work) < 2 and not shielded:
        return [function(item) for item in work]
    results: dict[int, R] = {}
    errors: list[BaseException] = []
    lock = threading.Lock()
    positions = iter(range(len(work)))

    def run() -> None:
        while True:
            with lock:
                position = None if errors else next(positions, None)
            if position is None:
                return
            try:
                results[position] = function(work[position])
            except BaseException as error:
                with lock:
                    errors.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(WORKERS, len(work)))]
    for thread in threads:
        thread.start()
    _join(threads, errors)
    if errors:
        raise errors[0]
    return [results[position] for position in range(len(work))]


def _join(threads: list[threading.Thread], errors: list[BaseException]) -> None:
    for thread in threads:
        try:
            thread.join()
        except BaseException as interruption:
            errors.insert(0, interruption)
            _join(threads, errors)
            return
