"""Live Tail as a bell. Time is real here, and nobody sleeps: without the bell, most would never end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shunter.backoff import Clock
from shunter.errors import BackendError
from shunter.schedulers.aws import cloudwatch, cloudwatch_calls
from tests.aws.fake import FakeAws
from tests.aws.logtools import GROUP, Rig

HOUR = 3600.0
LINES = 30


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(cloudwatch_calls, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(cloudwatch_calls, "LONGEST_DELAY", 0.01)
    monkeypatch.setattr(cloudwatch, "FIRST_REFRESH", 0.02)
    monkeypatch.setattr(cloudwatch, "LONGEST_REFRESH", 0.02)
    # What has been read is all there is: coming in late is not at issue here.
    monkeypatch.setattr(cloudwatch, "LATE", -HOUR)
    with FakeAws() as aws:
        aws.logs.live_seconds = 0.02
        made = Rig(aws, IdleClock(), replicas=2)
        yield made
        assert aws.defects == []


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the bell makes a reader look again."""
    monkeypatch.setattr(cloudwatch, "FIRST_LOOK", HOUR)


@pytest.fixture
def quick_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudwatch, "FIRST_LOOK", 0.01)
    monkeypatch.setattr(cloudwatch, "LONGEST_LOOK", 0.05)


class IdleClock(Clock):
    """Real time, which tells when the reader has nothing to do."""

    def __init__(self) -> None:
        self.on_idle: Callable[[], None] = lambda: None

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if threading.current_thread() is threading.main_thread():
            self.on_idle()
        return super().wait(event, seconds)


def converse(job: Rig) -> None:
    """Follow, writing a line whenever all have been read; each must come once and in order."""
    found: dict[int, list[str]] = {0: [], 1: []}
    written: dict[int, list[str]] = {0: [], 1: []}

    def write() -> None:
        count = sum(map(len, written.values()))
        if sum(map(len, found.values())) < count:
            return
        if count == LINES:
            job.end()
            return
        written[count % 2].append(f"{count}")
        job.put(count % 2, f"{count}")

    assert isinstance(job.clock, IdleClock)
    job.clock.on_idle = write
    for block in job.blocks(options={"live": True, "calls_per_second": 1000.0}, should_tail=True):
        found[block.replica] += block.data.decode().split()
    assert found == written
    assert sum(map(len, found.values())) == LINES


@pytest.mark.usefixtures("no_polling")
def test_lines_come_at_once(job: Rig) -> None:
    job.aws.logs.create_stream(GROUP, job.stream(0))
    job.aws.logs.create_stream(GROUP, job.stream(1))
    converse(job)
    assert 1 <= job.aws.count("StartLiveTail") <= 2


@pytest.mark.usefixtures("quick_polling")
def test_an_account_without_live_tail(job: Rig) -> None:
    job.aws.logs.live_tail = False
    converse(job)
    assert job.aws.count("StartLiveTail") == 1


def test_it_is_not_used_unasked(job: Rig) -> None:
    job.put(0, "one")
    job.end_long_ago()
    job.read(should_tail=True)
    job.read(options={"live": True})
    assert job.aws.count("StartLiveTail") == 0


def test_the_reader_ends_the_session(job: Rig) -> None:
    job.put(0, "one")
    job.put(1, "one")
    reader: Any = job.blocks(options={"live": True}, should_tail=True)
    next(reader)
    next(reader)
    job.failures = [BackendError("stop")]
    with pytest.raises(BackendError, match="stop"):
        next(reader)
    for thread in threading.enumerate():
        if thread.name == "live-tail":
            thread.join(20)
            assert not thread.is_alive()
