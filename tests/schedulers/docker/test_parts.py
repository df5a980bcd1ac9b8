"""Small parts: times, names, frames, doing things at once, and what a dry run shows."""

import io
import itertools
import signal
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.errors import BackendError
from shunter.parallel import for_all
from shunter.schedulers.docker_scheduler.scheduler import create_scheduler
from shunter.schedulers.exec.container import labels
from shunter.schedulers.exec.container.inventory import format_time, parse_time
from shunter.schedulers.exec.container.logs import (
    PIECE_LENGTH,
    Cursor,
    FrameReader,
    LineJoiner,
    frames_after,
    split_time,
    stamp_of,
    time_ns,
    to_ns,
)
from shunter.specs import AppDef, Resource, Role

MOMENTS = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1))


# ---- times


@given(MOMENTS, st.integers(0, 999_999_999), st.integers(-14 * 60, 14 * 60))
def test_times(moment, fraction, minutes):
    moment = moment.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=minutes)))
    base, offset = moment.strftime("%Y-%m-%dT%H:%M:%S"), moment.strftime("%z")
    zone = f"{offset[:3]}:{offset[3:]}" if minutes else "Z"
    expected = int(moment.timestamp()) * 10**9 + fraction
    assert parse_time(f"{base}.{fraction:09d}{zone}") == expected
    assert parse_time(f"{base}{zone}") == expected - fraction
    assert format_time(expected) == f"{int(moment.timestamp())}.{fraction:09d}"
    stamp, rest = split_time(f"{base}.{fraction:09d}{zone} a b".encode())
    assert (time_ns(stamp), rest) == (expected, b"a b")
    assert stamp == stamp_of(expected)


@pytest.mark.parametrize("text", ["", "0001-01-01T00:00:00Z"])
def test_never(text):
    assert parse_time(text) == 0


@pytest.mark.parametrize(
    ("digits", "value"), [("5", 500_000_000), ("05", 50_000_000), ("123456789", 123_456_789)]
)
def test_fractions_of_any_length(digits, value):
    assert parse_time(f"1970-01-01T00:00:01.{digits}Z") == 10**9 + value


@given(MOMENTS)
def test_moments_are_exact(moment):
    aware = moment.replace(tzinfo=UTC)
    seconds = int(aware.replace(microsecond=0).timestamp())
    assert to_ns(aware) == seconds * 10**9 + moment.microsecond * 1000


# ---- names


@given(
    st.from_regex(r"[a-z][a-z0-9-]{0,46}[a-z0-9]", fullmatch=True),
    st.lists(
        st.tuples(st.text(min_size=1, max_size=60), st.integers(1, 3)),
        min_size=1,
        max_size=5,
        unique_by=lambda r: r[0],
    ),
)
def test_names_of_containers(name, layout):
    names = labels.container_names(f"{name}-bcdfghjkmn", layout)
    assert len(names) == sum(count for _, count in layout)
    assert len(set(names.values())) == len(names)
    for text in names.values():
        assert len(text) <= labels.LONGEST_NAME
        assert "bcdfghjkmn" in text
        assert text.replace("-", "a").isalnum()
        assert text.isascii()


# ---- frames and lines


def framed(frames) -> bytes:
    return b"".join(bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for stream, data in frames)


FRAMES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=60)), max_size=20)


@given(FRAMES, st.integers(1, 50))
def test_frames_come_back_however_they_are_cut(frames, size):
    data, reader = framed(frames), FrameReader()
    found = []
    for start in range(0, len(data), size):
        found += reader.frames(data[start : start + size])
    assert found == frames
    assert reader.is_complete


def test_error_frame():
    with pytest.raises(BackendError, match="cannot read the log: Error grabbing logs"):
        FrameReader().frames(framed([(3, b"Error grabbing logs: EOF\n")]))


class LoggingDaemon:
    """A daemon with the log of one container, of which it sends what was written up to ``size`` frames.

    Older daemons leave out all frames before ``since``, newer ones only those before the first that is not.
    """

    is_local = False

    def __init__(self, log: list[tuple[int, int, bytes]], is_old: bool) -> None:
        self.log = log
        self.is_old = is_old
        self.size = 0

    def stream(self, method, path, *, params, unframed):
        seconds, _, rest = (params["since"] or "0.0").partition(".")
        since = int(seconds) * 10**9 + int(rest)
        found = self.log[: self.size]
        if self.is_old:
            found = [frame for frame in found if frame[1] >= since]
        else:
            found = list(itertools.dropwhile(lambda frame: frame[1] < since, found))
        return Answer(framed([(stream, stamp_of(moment) + b" " + text) for stream, moment, text in found]))


class Answer(io.BytesIO):
    interrupt = None


@st.composite
def disordered_logs(draw):
    """Frames of two streams whose times ascend in each but not in both together; some are pieces of lines."""
    log, clock, times = [], 1800 * 10**15, {1: 0, 2: 0}
    goes_on = {1: False, 2: False}
    for number in range(draw(st.integers(0, 20))):
        stream = draw(st.sampled_from([1, 2]))
        clock += draw(st.sampled_from([0, 1, 10**11]))
        if not goes_on[stream]:
            times[stream] = max(times[stream], clock - draw(st.sampled_from([0, 3, 900_000_000])))
        goes_on[stream] = draw(st.booleans())
        text = f"{number}\n".encode()
        log.append((stream, times[stream], text.rjust(PIECE_LENGTH) if goes_on[stream] else text))
    return log


@given(disordered_logs(), st.booleans(), st.data())
@pytest.mark.slow
def test_a_log_whose_times_do_not_ascend_is_read_once(log, is_old, data):
    daemon, cursor, found = LoggingDaemon(log, is_old), Cursor(), []
    while daemon.size < len(log):
        daemon.size = data.draw(st.integers(daemon.size, len(log)))
        for frames in frames_after(daemon, "id", cursor, follow=False):
            found += frames
    assert [(stream, time_ns(stamp), text) for stream, stamp, text in found] == log


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(0, 40_000)), max_size=12), st.booleans())
def test_lines_are_put_together(lines, forgets):
    """``forgets``: the driver loses the line feed of lines that it cut."""
    frames = []
    for number, (stream, length) in enumerate(lines):
        line = bytes([97 + number]) * length
        pieces = [line[i : i + 16384] for i in range(0, length, 16384)] or [b""]
        is_cut = length >= 16384
        if is_cut and len(pieces[-1]) == 16384:
            pieces.append(b"")  # the line feed comes alone
        if not (is_cut and forgets):
            pieces[-1] += b"\n"
        frames += [(stream, piece) for piece in pieces]
    joiner = LineJoiner()
    texts = {1: b"", 2: b""}
    for stream, piece in frames:
        texts[stream] += joiner.add(stream, piece)
    rest = b"".join(joiner.rest())
    expected = {
        s: b"".join(bytes([97 + n]) * c + b"\n" for n, (t, c) in enumerate(lines) if t == s) for s in (1, 2)
    }
    got = texts[1] + texts[2] + rest
    assert sorted(got.replace(b"\n", b"")) == sorted((expected[1] + expected[2]).replace(b"\n", b""))
    if not rest:
        assert texts == expected


def test_lines_of_two_streams_do_not_mix():
    joiner = LineJoiner()
    half = b"x" * 16384
    assert joiner.add(1, half) == b""
    assert joiner.add(2, b"other\n") == b"other\n"
    assert joiner.add(1, b"end\n") == half + b"end\n"
    assert list(joiner.rest()) == []


# ---- doing things at once


def test_results_are_in_order():
    assert for_all(lambda n: n * n, range(50)) == [n * n for n in range(50)]
    assert for_all(str, []) == []
    assert for_all(lambda n: threading.current_thread() is threading.main_thread(), [0], shielded=True) == [
        False
    ]


def test_first_error_is_raised_and_nothing_more_is_begun():
    begun = []

    def work(n):
        begun.append(n)
        if n == 0:
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        for_all(work, range(10_000))
    assert len(begun) < 10_000


def test_what_is_under_way_is_waited_for():
    started, ended = threading.Event(), []

    def work(n):
        started.set()
        if n == 0:
            threading.Event().wait(0.2)
        ended.append(n)

    def interrupt():
        started.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        for_all(work, [0, 1], shielded=True)
    assert 0 in ended
    interrupter.join()


# ---- requests


def dryrun(*roles, **cfg):
    return create_scheduler("test").submit_dryrun(AppDef("app", list(roles)), cfg)


def test_secrets_are_masked(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijkl")
    role = Role("r", "i", entrypoint="e", args=["--password", "hunter22"], env={"API_KEY": "abcdefgh1234"})
    info = dryrun(role, copy_env=["HF_*"])
    assert info.request.containers[0].env["HF_TOKEN"] == "hf_abcdefghijkl"
    for secret in ("hf_abcdefghijkl", "hunter22", "abcdefgh1234"):
        assert secret not in repr(info)


def test_gpus_are_shared_out():
    gpu = Resource(-1, 2, -1)
    one = dryrun(Role("r", "i", entrypoint="e", resource=gpu)).request.containers[0]
    assert one.body["HostConfig"]["DeviceRequests"][0]["Count"] == 2
    two = dryrun(Role("r", "i", entrypoint="e", resource=gpu, num_replicas=2)).request.containers
    assert [c.body["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] for c in two] == [["0", "1"], ["2", "3"]]


def test_named_devices():
    devices = {"vpc.amazonaws.com/efa": 2, "example.com/unknown": 1}
    request = dryrun(Role("r", "i", entrypoint="e", resource=Resource(-1, -1, -1, devices=devices))).request
    paths = [device["PathOnHost"] for device in request.containers[0].body["HostConfig"]["Devices"]]
    assert paths == ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"]
    assert request.warnings == ["role 'r': local_docker ignores the device 'example.com/unknown'"]


@pytest.mark.parametrize(
    ("policy", "count", "expected"),
    [("ROLE", 1, "on-failure"), ("REPLICA", 2, "on-failure"), ("ROLE", 2, "no")],
)
def test_who_restarts(policy, count, expected):
    from shunter.specs import RetryPolicy

    role = Role("r", "i", entrypoint="e", num_replicas=count, max_retries=3, retry_policy=RetryPolicy[policy])
    container = dryrun(role).request.containers[0]
    assert container.body["HostConfig"]["RestartPolicy"]["Name"] == expected
