"""CloudWatch's pages, tokens, windows of time and filter patterns; by boto3, on logs that are made here."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.aws_endpoint import job_logs
from shunter.aws_endpoint.log_patterns import matcher
from shunter.schedulers.sagemaker_local_scheduler.logs import LONGEST_EVENT, Log
from shunter.schedulers.sagemaker_local_scheduler.request_validation import ApiError

from .conftest import GROUP, Jobs

T = 1_700_000_000_000


class Made:
    """Logs of a job that has ended, beside its own one, which is empty."""

    def __init__(self, jobs: Jobs, home: Path) -> None:
        self.client = jobs.logs
        self.name = str(jobs.run("")["TrainingJobName"])
        self.folder = home / "state/sagemaker" / self.name / "logs"
        for path in self.folder.iterdir():
            path.unlink()

    def add(self, host: str, *moments: tuple[int, bytes], begun: int = T) -> str:
        """A log of what was written by some times."""
        path = self.folder / f"{host}-{begun}"
        size = 0
        with open(f"{path}.log", "wb") as log, open(f"{path}.times", "wb") as times:
            for time, data in moments:
                size += log.write(data)
                times.write(struct.pack("=QQ", size, time))
        return f"{self.name}/{path.name}"

    def get(self, stream: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.get_log_events(logGroupName=GROUP, logStreamName=stream, **more)
        return answer

    def filter(self, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.filter_log_events(logGroupName=GROUP, **more)
        return answer

    def pages(self, **more: Any) -> Iterator[dict[str, Any]]:
        yield from self.client.get_paginator("filter_log_events").paginate(logGroupName=GROUP, **more)


@pytest.fixture
def made(jobs: Jobs, processes: str, home: Path) -> Made:
    return Made(jobs, home)


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


def test_a_line_without_end_is_no_burden(made: Made) -> None:
    """Progress bars end no line for hours."""
    stream = made.add("algo-1", (T, b"50%\r" * (8 << 20)))
    logs = job_logs
    tracemalloc.start()
    try:
        answer = logs.get_log_events({"logGroupName": GROUP, "logStreamName": stream, "limit": 2})
        assert len(answer["events"]) == 2
        answer = logs.filter_log_events({"logGroupName": GROUP, "filterPattern": "absent"})
        assert answer["events"] == []
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_log(made: Made) -> None:
    """A page of one that is larger than what one answer looks at; and its end."""
    line = b"z" * 199 + b"\n"
    stream = made.add("algo-1", (T, line * 100_000), (T + 1, line * 300_000), (T + 2, b"needle\n"))
    logs = job_logs
    where = {"logGroupName": GROUP, "logStreamName": stream}
    tracemalloc.start()
    try:
        assert logs.get_log_events({**where})["events"][-1]["message"] == "needle"
        late = {**where, "startFromHead": True, "startTime": T + 2}
        assert [event["message"] for event in logs.get_log_events(late)["events"]] == ["needle"]
        empty = logs.filter_log_events({"logGroupName": GROUP, "filterPattern": "needle"})
        assert empty["events"] == []
        assert empty["nextToken"]
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    assert [text for page in made.pages(filterPattern="needle") for text in texts(page)] == ["needle"]


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


def test_streams_in_order_of_their_last_event(made: Made) -> None:
    for host, last in (("algo-1", 30), ("algo-2", 10), ("algo-3", 20)):
        made.add(host, (T, b"x\n"), (T + last, b"y\n"))
    made.add("algo-4")

    def hosts(**more: Any) -> list[str]:
        pages = made.client.get_paginator("describe_log_streams").paginate(
            logGroupName=GROUP, PaginationConfig={"PageSize": 3}, **more
        )
        return [stream["logStreamName"].split("/")[1][:6] for page in pages for stream in page["logStreams"]]

    assert hosts() == [f"algo-{i}" for i in (1, 2, 3, 4)]
    assert hosts(descending=True) == [f"algo-{i}" for i in (4, 3, 2, 1)]
    assert hosts(orderBy="LastEventTime") == [f"algo-{i}" for i in (4, 2, 3, 1)]
    assert hosts(orderBy="LastEventTime", descending=True) == [f"algo-{i}" for i in (1, 3, 2, 4)]
    identifier = "arn:aws:logs:us-west-2:123456789012:log-group:" + GROUP
    rows = made.client.describe_log_streams(logGroupIdentifier=identifier, limit=1)["logStreams"]
    assert (rows[0]["firstEventTimestamp"], rows[0]["lastEventTimestamp"]) == (T, T + 30)
    assert rows[0]["arn"].startswith(f"{identifier}:log-stream:{made.name}/algo-1-")


def test_what_logs_refuse(made: Made) -> None:
    stream = made.add("algo-1", (T, b"x\n"))
    client = made.client
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (client.describe_log_streams, {"orderBy": "LastEventTime", "logStreamNamePrefix": "x"}, "order by"),
        (client.describe_log_streams, {"nextToken": "x"}, "nextToken is invalid"),
        (
            client.describe_log_streams,
            {"limit": 51},
            "'51' at 'limit' .* less than or equal to 50",
        ),
        (client.filter_log_events, {"logStreamNames": [stream], "logStreamNamePrefix": "x"}, "both"),
        (client.filter_log_events, {"nextToken": "1/x/y"}, "nextToken is invalid"),
        (client.filter_log_events, {"startFromHead": False}, "startFromHead"),
        (client.filter_log_events, {"filterPattern": "{ $.a }"}, "operator is missing"),
        (client.get_log_events, {"logStreamName": stream, "nextToken": "f/\u0661"}, "nextToken is invalid"),
        (client.get_log_events, {"logStreamName": stream, "limit": 10_001}, "less than or equal to 10000"),
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


PATTERNS = [
    ("", ["ERROR a", "ERROR b c", "warn", 'say "hi"', "404 x"]),
    ("ERROR", ["ERROR a", "ERROR b c"]),
    ("error", []),
    ("ERROR c", ["ERROR b c"]),
    ('"b c"', ["ERROR b c"]),
    ('"c b"', []),
    ("ERROR -c", ["ERROR a"]),
    ('-ERROR -"40"', ["warn", 'say "hi"']),
    ("?warn ?404", ["warn", "404 x"]),
    ('?"ERROR a" ?warn', ["ERROR a", "warn"]),
    ("?warn ERROR", ["ERROR a", "ERROR b c"]),
    (r'"\"hi\""', ['say "hi"']),
    ("%[0-9]{3}%", ["404 x"]),
    ("%^ERROR .$%", ["ERROR a"]),
    ("ERROR %b.c%", ["ERROR b c"]),
]


@pytest.mark.parametrize(("pattern", "expected"), PATTERNS)
def test_filter_patterns(pattern: str, expected: list[str]) -> None:
    matches = matcher(pattern)
    assert [line for line in PATTERNS[0][1] if matches(line)] == expected


EVENTS = [
    {"level": "ERROR", "step": 1, "user": {"id": 7, "name.x": "a"}, "tags": ["x", "y"], "ok": True},
    {"level": "WARN", "step": 20, "user": None, "tags": [], "ok": False},
    {"level": "ERROR: late", "step": "20", "items": [{"n": 1}, {"n": 5}], "loss": 1.5e-3},
]
JSON_PATTERNS = [
    ('{ $.level = "ERROR" }', [0]),
    ("{ $.level = ERROR* }", [0, 2]),
    ('{ $.level = "*R*" }', [0, 1, 2]),
    ('{ $.level != "ERROR" }', [1, 2]),
    ("{ $.level = %^E.*R$% }", [0]),
    ("{ $.step >= 1 }", [0, 1]),
    ("{ $.step = 20 }", [1, 2]),
    ('{ $.level = "ERROR" && $.step > 5 }', []),
    ('{ $.level = "ERROR" || $.step > 5 }', [0, 1]),
    ("{ ($.step = 1 || $.step = 20) && $.ok IS FALSE }", [1]),
    ("{ $.step = 1 || $.step = 20 && $.ok IS FALSE }", [0, 1]),
    ("{ $.loss < 2e-3 }", [2]),
    ("{ $.loss < .0015 }", []),
    ("{ $.user IS NULL }", [1]),
    ("{ $.user NOT EXISTS }", [2]),
    ("{ $.user.id = 7 }", [0]),
    ("{ $.user['name.x'] = \"a\" }", [0]),
    ("{ $.ok IS TRUE }", [0]),
    ('{ $.tags[1] = "y" }', [0]),
    ('{ $.tags[2] = "y" }', []),
    ('{ $.tags[*] = "y" }', [0]),
    ("{ $.items[*].n > 4 }", [2]),
    ("{$.items[0].n=1}", [2]),
    ("{ $.missing != 1 }", []),
]


@pytest.mark.parametrize(("pattern", "expected"), JSON_PATTERNS)
def test_filter_patterns_for_json(pattern: str, expected: list[int]) -> None:
    matches = matcher(pattern)
    lines = [json.dumps(event) for event in EVENTS]
    assert [number for number, line in enumerate(lines) if matches(line)] == expected
    assert not any(map(matches, ["ERROR", "", "{", "[1]", "3", "null"]))


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "{",
            "{}",
            "{ $ = 1 }",
            "{ $.a }",
            "{ $.a = }",
            "{ $.a > x }",
            "{ ($.a = 1 }",
            "{ $.a = 1 $.b = 2 }",
        ),
        *("{ $.a = %(% }", "{ a = 1 }", "{ $.a = 1 ) }", "{ $.a && $.b }", "{" + "(" * 1000 + "}"),
    ],
)
def test_filter_patterns_for_json_that_are_refused(pattern: str) -> None:
    with pytest.raises(ApiError, match="Invalid filter pattern"):
        matcher(pattern)


@pytest.mark.parametrize(
    "pattern", ["{ $.x ~ 1 }", "[a, b]", '"open', "%open", "%(a)%", "%[%", '"a"b', "-", "a ? b", "%a%%b%"]
)
def test_filter_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(ApiError, match="Invalid filter pattern") as error:
        matcher(pattern)
    assert error.value.code == "InvalidParameterException"


TERMS = st.sampled_from([*'(){}=<>*%$.[]1a"', "$.a", "&&", "||", " IS NULL", " NOT EXISTS", "!=", "[0]", " "])


@given(
    st.text(max_size=30) | st.lists(TERMS, max_size=12).map(lambda terms: "{" + "".join(terms) + "}"),
    st.text(max_size=30) | st.sampled_from(['{"a": 1}', '{"a": ["1", {"a": null}]}']),
)
def test_any_pattern_is_understood_or_refused(pattern: str, message: str) -> None:
    try:
        matches = matcher(pattern)
    except ApiError:
        return
    assert matches(message) in (True, False)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.text("ab\n", max_size=12)), max_size=8),
    st.integers(0, 12),
    st.integers(1, 5),
)
def test_places_and_times_agree(moments: list[tuple[int, str]], since: int, count: int) -> None:
    """However lines and moments fall: looking a time up finds the events that reading all of them finds."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = Log(f"{folder}/algo-1-0")
        size = time = 0
        with open(f"{log.path}.log", "wb") as file, open(f"{log.path}.times", "wb") as times:
            for step, text in moments:
                time += step
                size += file.write(text.encode())
                times.write(struct.pack("=QQ", size, time))
        everything = [(e.start, e.time_ms, e.data) for e in log.events(0, True)]
        start = log.line_start(log.boundary(since, True))
        late = [(e.start, e.time_ms, e.data) for e in log.events(start, True) if e.time_ms >= since]
        assert late == [event for event in everything if event[1] >= since]
        last = [(e.start, e.time_ms, e.data) for e in log.events(log.start_of_last(count, log.size), True)]
        assert last == everything[-count:]


def test_lines_whose_time_is_not_known_yet_come_after_every_time(tmp_path: Path) -> None:
    """A reader that asks for a time, while lines are written and not yet noted, misses none of them."""
    log = Log(f"{tmp_path}/algo-1-0")
    times = tmp_path / "algo-1-0.times"
    (tmp_path / "algo-1-0.log").write_bytes(b"one\ntwo\nthree\n")
    times.write_bytes(struct.pack("=QQ", 4, 10))
    start = log.line_start(log.boundary(20, False))
    times.write_bytes(struct.pack("=QQQQ", 4, 10, 14, 30))  # they are noted before the reader goes on
    found = [event.data for event in log.events(start, False) if event.time_ms >= 20]
    assert found == [b"two\n", b"three\n"]


def test_error_codes_of_the_logs_are_their_own(made: Made) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match="log group does not exist"):
        made.client.describe_log_streams(logGroupName="/other")
