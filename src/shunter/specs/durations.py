"""Durations as people type them."""

from __future__ import annotations

import re

from shunter.errors import UsageError
from shunter.limits import MOST_SECONDS, cut

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)")


def has_units(text: str) -> bool:
    """Tell whether a text is a duration with units, such as ``1h30m``."""
    return _DURATION.fullmatch(text.strip().lower()) is not None


def parse_duration(text: str) -> float:
    """Return seconds from ``90``, ``10m``, ``1h30m``, ``2d``.

    Raises:
        UsageError: the text is not a duration, or longer than a hundred years.
    """
    stripped = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", stripped):
        seconds = float(stripped)
    elif has_units(stripped):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(stripped))
    else:
        raise UsageError(f"{cut(text)!r} is not a duration", hint="Examples: 90 (seconds), 10m, 1h30m, 2d.")
    if seconds > MOST_SECONDS:
        raise UsageError(f"{cut(text)!r} is longer than {MOST_SECONDS / 86400:,.0f} d, the maximum")
    return seconds


def parse_time_limit(text: str) -> float:
    """Return seconds from ``90s``, ``1h30m``, ``1:30:00``, ``2-12:00:00``.

    A bare number is refused, and so is ``1:30``: schedulers disagree on whether they are minutes.

    Raises:
        UsageError: the text is not such a duration, or it is zero.
    """
    clock = _CLOCK.fullmatch(text.strip())
    if clock is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        text = f"{days}d{hours}h{minutes}m{seconds}s"
    elif not has_units(text):
        raise UsageError(
            f"{cut(text)!r} is not a time limit with units", hint="Examples: 90s, 30m, 1h30m, 1d, 1:30:00."
        )
    seconds_in_all = parse_duration(text)
    if not seconds_in_all:
        raise UsageError("a time limit must be longer than 0 s")
    return seconds_in_all
