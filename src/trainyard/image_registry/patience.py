"""How long, and how often, something that failed is tried again."""

from __future__ import annotations

import email.utils
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_PATIENCE = 120.0
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 10.0


@dataclass
class Patience:
    """Exponential backoff with jitter, for one operation.

    Attributes:
        limit: seconds from the first failure after which `pause` gives up.
        sleep: waits so many seconds.
        clock: seconds that only grow.
        jitter: a number from 0 to 1, new each time.
    """

    limit: float = DEFAULT_PATIENCE
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    _since: float | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)

    def renewed(self) -> Patience:
        """Return the same patience for another operation."""
        return Patience(self.limit, self.sleep, self.clock, self.jitter)

    def progressed(self) -> None:
        """Forget the failures: what is done now is safe."""
        self._since, self._failures = None, 0

    def waited(self) -> float:
        """Return the seconds since the first failure."""
        return 0.0 if self._since is None else self.clock() - self._since

    def pause(self, at_least: float = 0.0) -> bool:
        """Wait after a failure; False, without waiting, if that would exceed the limit.

        Args:
            at_least: seconds that the other side asked for.
        """
        now = self.clock()
        if self._since is None:
            self._since = now
        left = self._since + self.limit - now
        seconds = min(FIRST_PAUSE * 2**self._failures, LONGEST_PAUSE)
        seconds = max(seconds * (0.5 + self.jitter() / 2), at_least)
        if left <= 0 or at_least > left:
            return False
        self._failures += 1
        self.sleep(min(seconds, left))
        return True


def retry_after(value: str | None, now: float | None = None) -> float:
    """Read the header ``Retry-After``, seconds or a date; 0 if it says nothing.

    https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
    """
    if not value:
        return 0.0
    if value.strip().isdigit():
        return float(value.strip())
    try:
        date = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    return max(0.0, date.timestamp() - (time.time() if now is None else now))
