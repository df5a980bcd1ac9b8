"""Times, durations and sizes as users type and read them; how durations are shown is in `terminal`."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from shunter.errors import UsageError
from shunter.limits import MOST_SECONDS, cut

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?")

EXAMPLES = "Examples: 10m, 2h, 1h30m, 3d, 2026-03-01T12:00:00, 14:30 (today), now."


def parse_duration(text: str) -> float:
    """Return seconds from ``90``, ``10m``, ``1h30m``, ``2d``.

    Raises:
        UsageError: the text is not a duration, or longer than a hundred years.
    """
    stripped = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", stripped):
        seconds = float(stripped)
    elif _DURATION.fullmatch(stripped):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(stripped))
    else:
        raise UsageError(f"{cut(text)!r} is not a duration", hint="Examples: 90 (seconds), 10m, 1h30m, 2d.")
    if seconds > MOST_SECONDS:
        raise UsageError(f"{cut(text)!r} is longer than {MOST_SECONDS / 86400:,.0f} d, the maximum")
    return seconds


def parse_time(text: str, now: float | None = None) -> datetime:
    """Return the time that a text means, with a time zone.

    It is a duration before now (``10m``), an ISO date or time (local unless it has a zone), a time of today
    (``14:30``), seconds since the epoch (``@1700000000``), or ``now``.

    Raises:
        UsageError: it is none of these.
    """
    stripped = text.strip()
    current = time.time() if now is None else now
    try:
        if stripped.lower() == "now":
            return datetime.fromtimestamp(current, UTC)
        if stripped.startswith("@"):
            return datetime.fromtimestamp(float(stripped[1:]), UTC)
        if _DURATION.fullmatch(stripped.lower()):
            return datetime.fromtimestamp(current - parse_duration(stripped), UTC)
        if _CLOCK.fullmatch(stripped):
            today = datetime.fromtimestamp(current).date().isoformat()  # the local date
            return datetime.fromisoformat(f"{today}T{stripped.zfill(5)}").astimezone()
        return datetime.fromisoformat(stripped).astimezone()
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"{cut(text)!r} is not a time", hint=EXAMPLES) from None


def format_time(stamp: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time as local time; "-" for None."""
    return "-" if stamp is None else time.strftime(form, time.localtime(stamp))


def format_bytes(count: float) -> str:
    """Return a number of bytes with a unit: "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
