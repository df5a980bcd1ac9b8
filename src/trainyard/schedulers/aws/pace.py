"""How often AWS is called: a clock that tests replace, a bound on calls per second, back-off with jitter."""

from __future__ import annotations

import random
import threading
import time

#: The first pause after a call that failed, and the longest, in seconds.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 20.0
#: However often AWS says that it is too much, calls are not made more rarely than so many a second.
LEAST_RATE = 1.0
#: What a throttled call and an answered one do to the rate.
SLOWER, FASTER = 0.8, 1.15


class StoppedError(Exception):
    """Waiting was given up because nobody wants the result any more."""


class Clock:
    """Time as it is. All times are in seconds."""

    def time(self) -> float:
        """Return the time since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return a time that never goes back."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set, but no longer than this; returns whether it is set."""
        return event.wait(seconds)


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


def pause_after(failures: int) -> float:
    """Return how long to wait (s) after so many failures in a row: twice as long each time, with jitter."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 10))
    return longest * (0.5 + random.random() / 2)
