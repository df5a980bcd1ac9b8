"""Time that passes only where somebody waits, and things that happen at a time."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

from shunter.backoff import Clock


class FakeClock(Clock):
    """A clock whose `wait` takes no time, but lets it pass.

    Attributes:
        elapsed: seconds since the beginning.
    """

    def __init__(self, start: float = 1_795_000_000.0) -> None:
        self.elapsed = 0.0
        self._start = start
        self._lock = threading.RLock()
        self._order = itertools.count()
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []

    def time(self) -> float:
        return self._start + self.elapsed

    def monotonic(self) -> float:
        return self.elapsed

    def ms(self, seconds: float = 0.0) -> int:
        """Return the time ``seconds`` after the beginning, in milliseconds."""
        return round((self._start + seconds) * 1000)

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something ``seconds`` after the beginning."""
        with self._lock:
            heapq.heappush(self._agenda, (seconds, next(self._order), action))

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            self.advance(seconds)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        with self._lock:
            target = self.elapsed + seconds
            while self._agenda and self._agenda[0][0] <= target:
                moment, _, action = heapq.heappop(self._agenda)
                self.elapsed = max(self.elapsed, moment)
                action()
            self.elapsed = max(self.elapsed, target)
