"""Times as the daemon writes them, to the nanosecond."""

from __future__ import annotations

_SECOND = 1_000_000_000


def parse_time(text: str) -> int:
    """Return nanoseconds since the epoch of an RFC 3339 text; 0 for "never" (the year 1, or nothing)."""
    if not text or text.startswith("0001-"):
        return 0
    year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
    seconds = _days(year, month, day) * 86400
    seconds += int(text[11:13]) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
    rest = text[19:]
    digits = ""
    if rest.startswith("."):
        digits = rest[1:].rstrip("Z").partition("+")[0].partition("-")[0]
        rest = rest[1 + len(digits) :]
    if rest and rest[0] in "+-":
        hours, _, minutes = rest[1:].partition(":")
        offset = int(hours) * 3600 + int(minutes or 0) * 60
        seconds += -offset if rest[0] == "+" else offset
    return seconds * _SECOND + int((digits + "000000000")[:9])


def format_time(time_ns: int) -> str:
    """Return what ``since`` and ``until`` of the API take."""
    return f"{time_ns // _SECOND}.{time_ns % _SECOND:09d}"


def in_seconds(time_ns: int) -> float | None:
    """Return seconds since the epoch; None for "never"."""
    return time_ns / _SECOND if time_ns else None


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 in the Gregorian calendar."""
    year -= month <= 2
    era_days = year * 365 + year // 4 - year // 100 + year // 400
    return era_days + (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1 - 719468
