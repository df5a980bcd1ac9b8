"""Many streams at once: every line once, whatever goes wrong, with few calls and bounded memory."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from shunter.schedulers.aws import cloudwatch
from tests.aws.clock import FakeClock
from tests.aws.logtools import Rig, rig

NODES = 64
PASSING = (
    "throttle",
    "server_error",
    "drop",
    "truncate",
    "lose_answer",
    "repeat",
    "empty_page",
)


class Writers:
    """Writes to all streams as agents do: in batches every few seconds, which take their time to be seen."""

    def __init__(self, job: Rig, seed: int, seconds: float, *, late: bool) -> None:
        self.job = job
        self.random = random.Random(seed)
        self.lines: dict[int, list[str]] = defaultdict(list)
        self.late: dict[int, set[str]] = defaultdict(set)
        self.visible: dict[int, float] = defaultdict(float)
        self.written: dict[int, int] = defaultdict(int)
        clock = job.clock
        assert isinstance(clock, FakeClock)
        for k in job.attempts:
            at = self.random.uniform(0, 8)
            while at < seconds:
                clock.at(at, lambda k=k, late=late: self.batch(k, late=late))  # type: ignore[misc]
                at += self.random.expovariate(1 / 8)
        clock.at(seconds, job.end)

    def batch(self, k: int, *, late: bool) -> None:
        """Write some lines; of equal text and time too, and some with a time that has long passed."""
        now = self.job.clock.time()
        delay = max(self.visible[k], now + self.random.uniform(0, 4.5)) - now
        self.visible[k] = now + delay
        end = round(now * 1000)
        start = max(end - 3000, self.written[k])
        self.written[k] = end
        count = self.random.randrange(1, 12)
        times = sorted(self.random.randrange(start, end + 1) // 50 * 50 for _ in range(count))
        times = [max(start, time) for time in times]
        events = []
        for time in times:
            text = f"{k}: {len(self.lines[k]) // 2}"
            if late and self.random.random() < 0.05:
                text = f"{k}: late {len(self.lines[k])}"
                self.late[k].add(text)
                time -= self.random.randrange(1_000, 60_000)
            self.lines[k].append(text)
            events.append((time, text))
        self.job.put(k, *events, visible_after=delay)


def follow(job: Rig) -> dict[int, list[str]]:
    return {k: text.decode().splitlines() for k, text in job.read(should_tail=True).items()}


def calls_in_any_second(times: list[float]) -> int:
    times = sorted(times)
    first = most = 0
    for i, time in enumerate(times):
        while times[first] <= time - 1:
            first += 1
        most = max(most, i - first + 1)
    return most


@pytest.mark.slow
def test_64_streams_are_followed_exactly_and_in_order() -> None:
    with rig(NODES) as job:
        writers = Writers(job, 1, 240, late=False)
        times = note_times(job)
        assert follow(job) == writers.lines
        assert sum(map(len, writers.lines.values())) > 9_000
        assert calls_in_any_second(times) <= 2
        assert len(job.refreshed) < 240 / 2


def note_times(job: Rig) -> list[float]:
    """Return a list that will hold when each call to CloudWatch is made."""
    times: list[float] = []
    job.client.meta.events.register("before-send", lambda **_: times.append(job.clock.monotonic()))
    return times


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 16, 21, 31])
def test_whatever_goes_wrong(seed: int) -> None:
    with rig(5) as job:
        writers = Writers(job, seed, 150, late=True)
        job.aws.logs.page_events = random.Random(seed).choice([7, 40, 10_000])
        job.aws.logs.empty_every = random.Random(seed).choice([0, 3, 7])
        job.aws.faults.at_random(seed, 0.1, PASSING, ("FilterLogEvents",))
        found = follow(job)
        assert len(job.aws.faults.happened) > 20
        for k, lines in writers.lines.items():
            # not in order: what becomes visible between two pages of a look is found by the next look
            assert Counter(found[k]) == Counter(lines)
        job.aws.faults.clear()
        again = {k: text.decode().splitlines() for k, text in job.read().items()}
        assert {k: Counter(lines) for k, lines in again.items()} == {
            k: Counter(lines) for k, lines in writers.lines.items()
        }


def test_one_silent_stream_costs_few_calls() -> None:
    with rig() as job:
        assert isinstance(job.clock, FakeClock)
        job.put(0, "hello")
        job.clock.at(600, job.end)
        times = note_times(job)
        assert follow(job) == {0: ["hello"]}
        assert len(times) < 600 / 4


def test_memory_of_what_was_seen_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudwatch, "REMEMBERED", 100)
    with rig(2) as job:
        assert isinstance(job.clock, FakeClock)
        for i in range(1000):
            job.put(i % 2, (job.clock.ms(i / 100 - 20), f"{i}"))
        job.clock.at(5, lambda: job.put(0, "1000"))
        job.clock.at(20, job.end)
        found = follow(job)
        assert found == {0: [f"{i}" for i in range(0, 1001, 2)], 1: [f"{i}" for i in range(1, 1000, 2)]}
