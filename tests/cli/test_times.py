from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.cli.parser import parse_time
from shunter.errors import UsageError
from shunter.specs.durations import parse_duration
from shunter.terminal import format_duration

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("10m", 600),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1w", 604800),
        ("250ms", 0.25),
        ("1H", 3600),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10 m", "-5", "1h-2", "ten", "1.2.3", "1y"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        parse_duration(text)


@given(st.text())
def test_any_text_is_a_time_or_a_usage_error(text: str) -> None:
    try:
        moment = parse_time(text, NOW)
    except UsageError:
        return
    assert moment.tzinfo is not None


def test_times() -> None:
    assert parse_time("now", NOW).timestamp() == NOW
    assert parse_time("10m", NOW).timestamp() == NOW - 600
    assert parse_time("@12.5", NOW).timestamp() == 12.5
    assert parse_time("2026-03-01T12:00:00+02:00", NOW) == datetime(2026, 3, 1, 10, tzinfo=UTC)
    assert parse_time("2026-03-01", NOW) == datetime(2026, 3, 1).astimezone()
    today = datetime.fromtimestamp(NOW)
    assert parse_time("9:05", NOW) == today.replace(hour=9, minute=5, second=0, microsecond=0).astimezone()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.26, "0.3 s"),
        (9.97, "10 s"),
        (59.4, "59 s"),
        (59.6, "1:00 min"),
        (3599.7, "1:00:00 h"),
        (100000, "1 d 3 h"),
    ],
)
def test_durations_as_text(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
