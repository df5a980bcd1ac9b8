"""CloudWatch's pages, tokens and windows of time; by boto3, on logs that are made here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shunter.aws_endpoint.job_streams import LONGEST_EVENT
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor.documents import write_json
from shunter.schedulers.supervisor.log_index import LOG_NAMES, Record

from .conftest import GROUP, Jobs

T = 1_700_000_000_000


class Made:
    """A job that has ended, whose log is replaced."""

    def __init__(self, jobs: Jobs) -> None:
        self.client = jobs.logs
        self.name = str(jobs.run("")["TrainingJobName"])
        self.job = TrainingJob.of(self.name)
        self.attempts: dict[str, list[dict[str, Any]]] = {}

    def add(self, host: str, *moments: tuple[int, bytes], begun: int = T) -> str:
        """An attempt of a host, and what it had written by some times."""
        folder, index = Path(self.job.file("logs", "r", host)), Path(self.job.index_path("r", int(host[5:])))
        for parent in (folder, index.parent):
            parent.mkdir(parents=True, exist_ok=True)
        with open(folder / LOG_NAMES[0], "ab") as log, open(index, "ab") as records:
            start = log.tell()
            for time, data in moments:
                log.write(data)
                records.write(Record(time * 1_000_000, (log.tell(), 0)).pack())
        attempt = {"started_at": begun / 1000, "log_starts": [start, 0]}
        self.attempts.setdefault(host, []).append(attempt)
        self._write()
        return f"{self.name}/{host}-{begun}"

    def _write(self) -> None:
        hosts = {host: int(host[5:]) for host in self.attempts}
        request, state = self.job.read_request(), self.job.read_state()
        assert request is not None
        assert state is not None
        request["layout"] = [["r", k, self.job.file("logs", "r", host)] for host, k in hosts.items()]
        request["hostnames"] = {f"r/{k}": host for host, k in hosts.items()}
        replicas = [
            {"id": hosts[host], "state": "SUCCEEDED", "earlier": attempts[:-1], **attempts[-1]}
            for host, attempts in self.attempts.items()
        ]
        write_json(self.job.file(self.job.REQUEST), request)
        self.job.write_state({**state, "roles": [{"role": "r", "replicas": replicas}]})

    def get(self, stream: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.get_log_events(logGroupName=GROUP, logStreamName=stream, **more)
        return answer

    def filter(self, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.filter_log_events(logGroupName=GROUP, **more)
        return answer

    def pages(self, **more: Any) -> Iterator[dict[str, Any]]:
        yield from self.client.get_paginator("filter_log_events").paginate(logGroupName=GROUP, **more)


@pytest.fixture
def made(jobs: Jobs, processes: str) -> Made:
    return Made(jobs)


def texts(answer: dict[str, Any]) -> list[str]:
    return [event["message"] for event in answer["events"]]


def lines(first: int, last: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, last))


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def test_both_directions_to_their_ends(made: Made) -> None:
    """At an end the token stays what it was, and there are no events; that is how clients know."""
    stream = made.add("algo-1", (T, lines(0, 5)), (T + 100, lines(5, 10)))
    page = made.get(stream, startFromHead=True, limit=4)
    assert texts(page) == numbers(0, 4)
    seen = texts(page)
    while page["events"]:
        token = page["nextForwardToken"]
        page = made.get(stream, startFromHead=True, limit=4, nextToken=token)
        seen += texts(page)
    assert seen == numbers(0, 10)
    assert page["nextForwardToken"] == token
    assert made.get(stream, nextToken=token)["nextForwardToken"] == token

    page = made.get(stream, limit=4)
    assert texts(page) == numbers(6, 10)
    seen = texts(page)
    while page["events"]:
        token = page["nextBackwardToken"]
        page = made.get(stream, limit=4, nextToken=token)
        seen = texts(page) + seen
    assert seen == numbers(0, 10)
    assert page["nextBackwardToken"] == token
    assert texts(made.get(stream, limit=3, nextToken=page["nextForwardToken"])) == numbers(0, 3)


def test_windows_of_time(made: Made) -> None:
    """The start belongs to a window, its end does not; the latest events of the window come first."""
    stream = made.add("algo-1", *((T + 100 * i, lines(10 * i, 10 * i + 10)) for i in range(5)))
    window = {"startTime": T + 100, "endTime": T + 300}
    assert texts(made.get(stream, **window)) == numbers(10, 30)
    assert texts(made.get(stream, **window, startFromHead=True)) == numbers(10, 30)
    page = made.get(stream, **window, limit=7)
    assert texts(page) == numbers(23, 30)
    seen = texts(page)
    while page["events"]:
        page = made.get(stream, **window, limit=7, nextToken=page["nextBackwardToken"])
        seen = texts(page) + seen
    assert seen == numbers(10, 30)
    assert texts(made.get(stream, startTime=T + 401)) == []
    assert texts(made.get(stream, endTime=T)) == []
    # of a filter the end belongs to it
    assert texts(made.filter(**window)) == numbers(10, 40)


def test_long_lines_are_cut_between_characters(made: Made) -> None:
    text = "x" + "\u00fc" * LONGEST_EVENT + "\U0001f600" * 70_000
    stream = made.add("algo-1", (T, b"first\n" + text.encode() + b"\nlast\n"))
    found = texts(made.get(stream, startFromHead=True))
    parts: list[str] = []
    page = made.get(stream, startFromHead=True, limit=1)
    while page["events"]:
        assert len(page["events"]) == 1
        parts += texts(page)
        page = made.get(stream, startFromHead=True, limit=1, nextToken=page["nextForwardToken"])
    assert parts[0] == "first"
    assert parts[-1] == "last"
    assert "".join(parts[1:-1]) == text
    assert all(0 < len(part.encode()) <= LONGEST_EVENT for part in parts)
    assert found == parts[: len(found)]
    assert texts(made.get(stream, limit=2)) == parts[-2:]
    exact = made.add("algo-2", (T, b"y" * LONGEST_EVENT + b"\n" + b"\xff" * (LONGEST_EVENT + 1) + b"\n"))
    assert [len(each) for each in texts(made.get(exact))] == [LONGEST_EVENT, LONGEST_EVENT, 1]


def test_streams_are_merged_by_time(made: Made) -> None:
    made.add("algo-1", *((T + 2 * i, b"a%d\n" % i) for i in range(6)))
    made.add("algo-2", *((T + 2 * i + 1, b"b%d\n" % i) for i in range(6)))
    made.add("algo-1", (T + 50, b"c\n"), begun=T + 50)
    expected = [f"{host}{i}" for i in range(6) for host in "ab"] + ["c"]
    assert texts(made.filter()) == expected
    for size in (1, 2, 5):
        pages = list(made.pages(PaginationConfig={"PageSize": size}))
        assert [text for page in pages for text in texts(page)] == expected
        assert all(len(page["events"]) <= size for page in pages)
    assert texts(made.filter(startTime=T + 9, endTime=T + 10)) == ["b4", "a5"]
    only = made.filter(logStreamNames=[f"{made.name}/algo-2-{T}"])
    assert texts(only) == [f"b{i}" for i in range(6)]


def test_events_are_distinguished(made: Made) -> None:
    """Whoever follows leaves out what he has seen, by its id: hosts say the same at the same time."""
    for host in ("algo-1", "algo-2"):
        made.add(host, (T, b"same\nsame\n"))
    ids = [event["eventId"] for event in made.filter()["events"]]
    assert len(set(ids)) == 4
    assert {len(each) for each in ids} == {56}


def test_what_logs_refuse(made: Made) -> None:
    stream = made.add("algo-1", (T, b"x\n"))
    client = made.client
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (client.describe_log_streams, {"orderBy": "LastEventTime", "logStreamNamePrefix": "x"}, "order by"),
        (client.describe_log_streams, {"nextToken": "x"}, "nextToken is invalid"),
        (
            client.describe_log_streams,
            {"limit": 51},
            "limit: 51 is more than 50",
        ),
        (client.filter_log_events, {"logStreamNames": [stream], "logStreamNamePrefix": "x"}, "both"),
        (client.filter_log_events, {"nextToken": "1/x/y"}, "nextToken is invalid"),
        (client.filter_log_events, {"startFromHead": False}, "startFromHead"),
        (
            client.filter_log_events,
            {"filterPattern": "ERROR"},
            "not supported by this endpoint: leave it out",
        ),
        (client.get_log_events, {"logStreamName": stream, "nextToken": "f/\u0661"}, "nextToken is invalid"),
        (client.get_log_events, {"logStreamName": stream, "limit": 10_001}, "is more than 10000"),
    ]
    for call, arguments, words in wrong:
        with pytest.raises(client.exceptions.InvalidParameterException, match=words):
            call(logGroupName=GROUP, **arguments)
    with pytest.raises(client.exceptions.ResourceNotFoundException, match="stream does not exist"):
        client.filter_log_events(logGroupName=GROUP, logStreamNames=[stream, "no/such"])


def test_nothing_of_a_running_job_is_shown_twice(jobs: Jobs, processes: str) -> None:
    """Following as the AWS CLI does: from the time of the last event on, without those that were seen."""
    script = "for i in range(300):\n    print('line', i, flush=True)\n    time.sleep(0.002)\n"
    name = jobs.start(script, hosts=2)
    start, seen, found, is_over = 0, set(), [], False
    while not is_over:
        is_over = jobs.describe(name)["TrainingJobStatus"] == "Completed"
        for event in jobs.logs.filter_log_events(
            logGroupName=GROUP, logStreamNamePrefix=f"{name}/", startTime=start
        )["events"]:
            if (event["timestamp"], event["eventId"]) not in seen:
                seen.add((event["timestamp"], event["eventId"]))
                found.append((event["logStreamName"], event["message"]))
            start = max(start, event["timestamp"])
    for stream in jobs.streams(name):
        own = [message for where, message in found if where == stream]
        assert own == [f"line {i}" for i in range(300)]
