"""How often AWS is called: a clock that tests replace, a bound on calls per second, back-off with jitter."""

from __future__ import annotations

import threading

from trainyard.backoff import Clock

#: However often AWS says that it is too much, calls are not made more rarely than so many a second.
LEAST_RATE = 1.0
#: What a throttled call and an answered one do to the rate.
SLOWER, FASTER = 0.8, 1.15


class StoppedError(Exception):
    """Waiting was given up because nobody wants the result any more."""


class Pace:
    """Bounds the calls per second of everybody who shares it, and adapts to throttling.

    The bound falls with every call that AWS throttles, and rises with every one that it answers, by so much
    that it falls only while about two of five calls or more are throttled. Below that the calls of others
    are likely the reason, which a slower pace of ours would not change.

    Args:
        rate: calls per second.
        burst: so many calls may follow each other at once after a pause.
        clock: the time.
    """

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._most = rate
        self.rate = rate
        self._burst = burst
        self._clock = clock
        self._next = clock.monotonic() - burst / rate
        self._lock = threading.Lock()

    def take(self, stop: threading.Event) -> None:
        """Wait for one's turn.

        Raises:
            StoppedError: ``stop`` was set meanwhile.
        """
        with self._lock:
            now = self._clock.monotonic()
            turn = max(self._next, now - (self._burst - 1) / self.rate)
            self._next = turn + 1 / self.rate
        if stop.is_set() or (turn > now and self._clock.wait(stop, turn - now)):
            raise StoppedError

    def throttled(self) -> None:
        """Take note that AWS had too many calls."""
        with self._lock:
            self.rate = max(LEAST_RATE, self.rate * SLOWER)

    def succeeded(self) -> None:
        """Take note of a call that was answered."""
        if self.rate < self._most:
            with self._lock:
                self.rate = min(self._most, self.rate * FASTER)
