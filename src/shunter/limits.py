"""The largest numbers that users may give. Anything larger is a mistake, and would cost memory or time."""

from __future__ import annotations

#: Replicas of a role, processes of a node, and the indices by which they are named.
MOST_REPLICAS = 10_000
MOST_CPUS = 100_000
MOST_GPUS = 10_000
MOST_MEMORY_MB = 1_000_000_000  # a petabyte
MOST_RETRIES = 1_000_000
#: Submissions of a chain on a cluster, where each is a job in the queue.
MOST_SUBMISSIONS = 1_000
MOST_PORT = 65_535
#: Lines of a log, rows of a table.
MOST_LINES = 1_000_000_000
#: Durations: a hundred years.
MOST_SECONDS = 36_525 * 86_400.0

_LONGEST_SHOWN = 30


def whole_number(text: str, least: int, most: int) -> int:
    """Read a whole number within limits.

    Raises:
        ValueError: it is not one, or it is out of range; the message says which.
    """
    digits = text.strip().removeprefix("+").removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"{cut(text)!r} is not a whole number")
    # more digits than any limit has; Python refuses to read thousands
    significant = digits.lstrip("0")
    value = most + 1 if len(significant) > 18 else int(significant or "0")
    if text.strip().startswith("-"):
        value = -value
    if value < least:
        raise ValueError(f"{cut(text)} is less than {least:,}")
    if value > most:
        raise ValueError(f"{cut(text)} is more than {most:,}, the maximum")
    return value


def seconds_problem(name: str, seconds: float | None, *, may_be_zero: bool = False) -> str:
    """Return what is wrong with an option that is a duration; "" if nothing is, or it is not given."""
    if seconds is None or (0 <= seconds <= MOST_SECONDS and (seconds > 0 or may_be_zero)):
        return ""
    least = "at least 0" if may_be_zero else "more than 0"
    return f"{name} is {seconds:g} s; it must be {least} and at most {MOST_SECONDS:.0f}"


def cut(text: str) -> str:
    """Return a text that is not too long for a message."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
