"""Times (``torchx.util.datetime``)."""

from __future__ import annotations

import time


def get_past_epoch_time(days_past: int) -> int:
    """Return the time some days ago, in milliseconds since the epoch."""
    return int((time.time() - days_past * 86_400) * 1000)
