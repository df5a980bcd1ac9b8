"""How long to wait before something is tried again, and how often a job is polled.

Every loop that retries or polls takes its delays from here: with jitter, a time limit and a clock that tests
can replace.
"""

from __future__ import annotations

import time
from random import random
from threading import Event

#: Seconds between two polls of a running job: at first, and at most.
FIRST_POLL = 0.25
LONGEST_POLL = 10.0


class Clock:
    """The real time, in seconds."""

    def time(self) -> float:
        """Return the time since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return a time that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def wait(self, event: Event, seconds: float) -> bool:
        """Wait until the event is set, but no longer than this; returns whether it is set."""
        return event.wait(seconds)

    def random(self) -> float:
        """Return a random number from 0 to 1, for jitter."""
        return random()


class Backoff:
    """The delays between the attempts of one operation.

    Args:
        first: the first delay, in seconds.
        longest: the longest delay; None keeps all delays as long as the first.
        factor: how many times longer each delay is than the one before.
        jitter: the share of each delay that is random: with 0.5, 10 s become 5 to 10 s.
        attempts: how often the operation may be tried in all; None for no bound.
        limit: seconds after which `pause` refuses to wait, counted from the first `pause`, or from `start`;
            None for no limit.
        stop: an event that ends a delay early.
        clock: the time.
    """

    def __init__(
        self,
        first: float,
        longest: float | None = None,
        *,
        factor: float = 2.0,
        jitter: float = 0.5,
        attempts: int | None = None,
        limit: float | None = None,
        stop: Event | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.limit = limit
        self.failures = 0
        self._first = first
        self._longest = first if longest is None else longest
        self._factor = factor
        self._jitter = jitter
        self._attempts = attempts
        self._stop = stop
        self._clock = clock or Clock()
        self._since: float | None = None

    def start(self) -> Backoff:
        """Count the limit from now on; returns itself."""
        self._since = self._clock.monotonic()
        return self

    def reset(self) -> None:
        """Forget the failures, after an attempt that succeeded or made progress."""
        self.failures, self._since = 0, None

    def elapsed(self) -> float:
        """Return the seconds since `start` or the first `pause`."""
        return 0.0 if self._since is None else self._clock.monotonic() - self._since

    def left(self) -> float | None:
        """Return the seconds until the limit, at least 0; None if there is no limit."""
        return None if self.limit is None else max(0.0, self.limit - self.elapsed())

    def delay(self) -> float:
        """Count a failure, and return how long to wait after it, in seconds."""
        seconds = min(self._first * self._factor ** min(self.failures, 64), self._longest)
        self.failures += 1
        return seconds * (1 - self._jitter * self._clock.random()) if self._jitter else seconds

    def pause(self, at_least: float = 0.0) -> bool:
        """Wait before the next attempt; False, without waiting, if the attempts or the time are used up.

        Args:
            at_least: seconds that the other side asked for.
        """
        if self._since is None:
            self.start()
        left = self.left()
        if (left is not None and (left == 0 or at_least > left)) or self.failures + 1 == self._attempts:
            return False
        seconds = max(self.delay(), at_least)
        if left is not None:
            seconds = min(seconds, left)
        if self._stop is None:
            self._clock.sleep(seconds)
        else:
            self._clock.wait(self._stop, seconds)
        return True


def polling(timeout: float | None = None) -> Backoff:
    """Return the delays between polls of a running job, for at most ``timeout`` seconds from now."""
    return Backoff(FIRST_POLL, LONGEST_POLL, factor=1.5, jitter=0, limit=timeout).start()


def retry_after(header: str | None, now: float | None = None) -> float:
    """Read the header ``Retry-After``, seconds or a date, as seconds from now; 0 if it cannot be read.

    https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
    """
    if not header:
        return 0.0
    if header.strip().isdigit():
        return float(header.strip())
    from email.utils import parsedate_to_datetime  # 15 ms, and every command imports this module

    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    return max(0.0, date.timestamp() - (time.time() if now is None else now))
