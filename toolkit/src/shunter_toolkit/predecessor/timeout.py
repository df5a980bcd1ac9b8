"""A time limit for a block of code."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


class TimeoutError(Exception):  # noqa: A001 - the predecessors' name
    """The block took too long."""


@contextlib.contextmanager
def timeout(seconds: float = 0, minutes: float = 0, hours: float = 0) -> Iterator[None]:
    """Raise TimeoutError in the block when the time is up. Main thread only: it takes SIGALRM."""
    limit = seconds + 60 * minutes + 3600 * hours

    def over(number: int, frame: object) -> None:
        raise TimeoutError(f"timed out after {limit} seconds")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
