"""Reading CloudWatch Logs, over real HTTP against the fake. Time passes only where the reader waits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from shunter.errors import BackendError
from shunter.schedulers.aws.cloudwatch import AttemptLog
from tests.aws.logtools import GROUP, Rig, clock_of, rig


@pytest.fixture
def job() -> Iterator[Rig]:
    with rig() as made:
        yield made


# ---- what is there


def test_an_old_log_is_read_without_waiting_and_with_one_call(job: Rig) -> None:
    job.put(0, "one")
    job.end_long_ago()
    for _ in range(3):
        before = clock_of(job).elapsed, len(job.aws.calls)
        assert job.text() == "one\n"
        assert (clock_of(job).elapsed - before[0], len(job.aws.calls) - before[1]) == (0, 1)


def test_history_of_a_running_job_ends_at_once(job: Rig) -> None:
    job.put(0, "one")
    assert job.text() == "one\n"
    assert clock_of(job).elapsed == 0


@pytest.mark.slow
def test_pages_that_are_small_or_empty(job: Rig) -> None:
    lines = [f"line {i}" for i in range(3000)]
    job.put(0, *lines)
    job.end_long_ago()
    job.aws.logs.page_events = 37
    job.aws.logs.empty_every = 3
    for query in ({}, {"should_tail": True}, {"last": 5000}):
        assert job.text(**query).splitlines() == lines


def test_replicas_are_merged_by_time() -> None:
    with rig(5) as job:
        clock = clock_of(job)
        for i in range(500):
            job.put(i * 7 % 5, (clock.ms(i / 100), f"{i}"))
        job.end_long_ago()
        job.aws.logs.page_events = 11
        lines = b"".join(block.data for block in job.blocks()).decode().split()
        assert lines == [str(i) for i in range(500)]


def test_texts_with_line_ends_within(job: Rig) -> None:
    job.put(0, "a\rb\rc", "Traceback\n  File\nError", "ends with one\n", "crlf\r", "\N{SNOWMAN}")
    job.end_long_ago()
    assert job.text() == "a\rb\rc\nTraceback\n  File\nError\nends with one\ncrlf\r\n\N{SNOWMAN}\n"
    assert job.text(regex="^(b|Error)$") == "b\rError\n"
    assert job.text(last=2) == "crlf\r\n\N{SNOWMAN}\n"
    assert job.text(last=4) == "Error\nends with one\ncrlf\r\n\N{SNOWMAN}\n"


# ---- times


def test_since_and_until_in_milliseconds(job: Rig) -> None:
    start = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first = round(start.timestamp() * 1000)
    job.put(0, *((first + i, f"{i}") for i in range(10)))
    job.end_long_ago()

    def at(ms: float) -> datetime:
        return start + timedelta(milliseconds=ms)

    assert job.text(since=at(7)).split() == ["7", "8", "9"]
    assert job.text(until=at(2)).split() == ["0", "1"]
    assert job.text(since=at(3), until=at(5)).split() == ["3", "4"]
    assert job.text(since=at(6.001)).split() == ["7", "8", "9"]
    assert job.text(until=at(1.001)).split() == ["0", "1"]
    assert job.text(since=at(5), last=2).split() == ["8", "9"]
    assert job.text(until=at(5), last=2).split() == ["3", "4"]
    assert job.text(since=at(10)) == ""
    assert job.text(since=datetime(1960, 1, 1, tzinfo=UTC)).split() == [f"{i}" for i in range(10)]


def test_following_until_a_time_ends_then(job: Rig) -> None:
    clock = clock_of(job)
    for i in range(100):
        clock.at(i, lambda i=i: job.put(0, f"{i}"))  # type: ignore[misc]
    until = datetime.fromtimestamp(clock.ms(20) / 1000, UTC)
    assert job.text(should_tail=True, until=until).split() == [f"{i}" for i in range(20)]
    assert 20 < clock.elapsed < 40


# ---- the last lines


def test_last_lines_of_a_long_log_take_few_calls(job: Rig) -> None:
    job.put(0, *((1_700_000_000_000 + i, f"{i}") for i in range(30_000)))
    job.end_long_ago()
    job.aws.logs.page_events = 1000
    assert job.text(last=3).split() == ["29997", "29998", "29999"]
    calls = len(job.aws.calls)
    assert calls <= 3
    assert job.text(last=0) == ""
    assert len(job.aws.calls) == calls


@pytest.mark.parametrize("last", [0, 3, 2000])
def test_last_lines_then_following(job: Rig, last: int) -> None:
    clock = clock_of(job)
    lines = [f"{i // 7}" for i in range(1500)]
    job.put(0, *lines)
    clock.at(3, lambda: job.put(0, (clock.ms(-1), "late"), (clock.ms(0), "214"), "new"))
    clock.at(30, job.end)
    expected = lines[-last:] if last else []
    found = job.text(last=last, should_tail=True).split()
    assert found[:-3] == expected
    assert sorted(found[-3:]) == ["214", "late", "new"]


def test_last_lines_of_a_job_that_has_just_ended(job: Rig) -> None:
    job.put(0, *(f"{i}" for i in range(20)))
    job.put(0, "x", "y", visible_after=4)
    job.end()
    assert job.text(last=3).split() == ["19", "x", "y"]


# ---- what comes


def test_following_ends_with_the_job(job: Rig) -> None:
    clock = clock_of(job)
    clock.at(5, lambda: job.put(0, "one"))
    clock.at(40, lambda: job.put(0, "two", "three"))
    clock.at(41, job.end)
    assert job.text(should_tail=True).split() == ["one", "two", "three"]
    assert 47 <= clock.elapsed < 70


def test_late_and_equal_times_while_following(job: Rig) -> None:
    clock = clock_of(job)
    job.put(0, (clock.ms(-5), "a"), (clock.ms(-5), "a"), (clock.ms(-1), "b"))
    clock.at(4, lambda: job.put(0, (clock.ms(-5), "a"), (clock.ms(-1), "b"), (clock.ms(-1), "c")))
    clock.at(9, lambda: job.put(0, (clock.ms(9), "d")))
    clock.at(30, lambda: job.put(0, (clock.ms(-3), "late"), (clock.ms(9), "d")))
    clock.at(90, lambda: job.put(0, (clock.ms(-60), "later")))
    clock.at(200, job.end)
    lines = job.text(should_tail=True).split()
    assert sorted(lines) == sorted(["a", "a", "b", "a", "b", "c", "d", "late", "d", "later"])
    assert [line for line in lines if line in ("late", "later")] == ["late", "later"]


def test_a_stream_is_waited_for(job: Rig) -> None:
    clock = clock_of(job)
    clock.at(60, lambda: job.put(0, "here"))
    clock.at(90, job.end)
    assert job.text(should_tail=True) == "here\n"


def test_no_group(job: Rig) -> None:
    clock = clock_of(job)
    assert job.text() == ""  # it may come yet
    clock.at(20, lambda: job.put(0, "here"))
    clock.at(30, job.end)
    assert job.text(should_tail=True) == "here\n"
    job.end_long_ago()
    for query in ({}, {"last": 3}, {"should_tail": True}):
        reader = job.blocks(**query)
        job.aws.logs._groups.clear()
        with pytest.raises(BackendError, match=f"log group {GROUP} does not exist"):
            list(reader)


def test_attempts_come_one_after_the_other(job: Rig) -> None:
    clock = clock_of(job)
    job.attempts[0] = [AttemptLog("first", job.clock.time())]
    job.put(0, "1a")
    job.put(0, "1b", visible_after=5)

    def restart() -> None:
        job.attempts[0].append(AttemptLog("second"))
        job.put(0, "2a")

    clock.at(10, restart)
    clock.at(20, lambda: job.put(0, "2b"))
    clock.at(30, job.end)
    assert job.text(should_tail=True).split() == ["1a", "1b", "2a", "2b"]
    assert job.text().split() == ["1a", "1b", "2a", "2b"]
    assert job.text(last=3).split() == ["1b", "2a", "2b"]


@pytest.mark.slow
def test_streams_that_do_not_exist_yet_hold_up_no_others() -> None:
    with rig(300) as job:
        for k in range(0, 300, 7):
            job.put(k, f"{k}")
        assert job.read() == {k: b"" if k % 7 else b"%d\n" % k for k in range(300)}
        for k in range(300):
            job.put(k, "later")
        job.end_long_ago()
        before = job.aws.count("FilterLogEvents")
        assert all(text.endswith(b"later\n") for text in job.read().values())
        assert job.aws.count("FilterLogEvents") == before + 3
