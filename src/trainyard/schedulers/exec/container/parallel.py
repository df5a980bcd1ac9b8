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
#: So often Ctrl-C is noted, and what is under way still waited for.
PATIENT_INTERRUPTIONS = 2


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
    crew = _Crew(len(work))

    def run() -> None:
        while (position := crew.take()) is not None:
            error: BaseException | None = None
            try:
                results[position] = function(work[position])
            except BaseException as raised:
                error = raised
            crew.done(error)

    try:
        for _ in range(min(WORKERS, len(work))):
            threading.Thread(target=run, daemon=True).start()
    except BaseException as error:  # Ctrl-C, or no more threads; those that were started are waited for
        crew.stop(error)
    crew.wait()
    return [results[position] for position in range(len(work))]


class _Crew:
    """Hands out positions of the work, and knows what is under way.

    Ending threads is not what is waited for: an interrupted `Thread.join` takes its thread for ended.
    """

    def __init__(self, count: int) -> None:
        self._positions = iter(range(count))
        self._left = count
        self._under_way = 0
        self._errors: list[BaseException] = []
        self._condition = threading.Condition()

    def take(self) -> int | None:
        """Return what to do next; None if nothing is left, or something has failed."""
        with self._condition:
            position = None if self._errors else next(self._positions, None)
            self._under_way += position is not None
            return position

    def done(self, error: BaseException | None) -> None:
        """Note that something has been done, or has failed."""
        with self._condition:
            self._under_way -= 1
            self._left -= 1
            if error is not None:
                self._errors.append(error)
            self._condition.notify_all()

    def stop(self, error: BaseException) -> None:
        """Have nothing more begun."""
        with self._condition:
            self._errors.insert(0, error)
            self._condition.notify_all()

    def wait(self) -> None:
        """Wait until nothing is under way; over interruptions, but whoever insists gets away.

        Raises:
            Exception: the first error, or interruption.
        """
        interruptions = 0
        while True:
            try:
                with self._condition:
                    self._condition.wait_for(
                        lambda: not self._under_way and (bool(self._errors) or not self._left)
                    )
                break
            except BaseException as interruption:
                self.stop(interruption)
                interruptions += 1
                if interruptions > PATIENT_INTERRUPTIONS:
                    raise
        if self._errors:
            raise self._errors[0]
