"""Logs of containers: what the conformance suite does not ask for."""

import subprocess

import pytest

from shunter.schedulers.api import LogQuery, Stream
from shunter.specs import AppState

from .conftest import wait_until


def blocks(jobs, app_id, replicas=(("r", 0),), **query) -> bytes:
    found = jobs.scheduler.log_blocks(app_id, list(replicas), LogQuery(**query))
    return b"".join(block.data for block in found)


@pytest.mark.slow
def test_nothing_is_thrown_away(jobs):
    """The driver's default is to keep 100 MB, in parts of 20 MB."""
    script = (
        "for i in 1 2 3 4 5 6; do head -c 25000000 /dev/zero | tr '\\0' x | fold -w 10000; echo end $$i; done"
    )
    app_id, response = jobs.run(script)
    assert response.state == AppState.SUCCEEDED
    assert jobs.container(app_id)["HostConfig"]["LogConfig"]["Type"] == "local"
    count = lines = 0
    for block in jobs.scheduler.log_blocks(app_id, [("r", 0)], LogQuery()):
        count += block.data.count(b"x")
        lines += block.data.count(b"end")
    assert (count, lines) == (150_000_000, 6)


@pytest.mark.slow
@pytest.mark.parametrize("last", [1, 2, 3, 5, 100])
def test_last_lines_are_counted_as_lines(jobs, last):
    """The daemon counts pieces of lines, of both streams."""
    script = (
        "echo one; head -c 50000 /dev/zero | tr '\\0' x; echo; "
        "for i in 1 2 3 4 5 6 7 8; do echo noise >&2; done; sleep 0.1; echo three"
    )
    app_id, _ = jobs.run(script)
    expected = [b"one\n", b"x" * 50000 + b"\n", b"three\n"][-last:]
    assert blocks(jobs, app_id, last=last, streams=Stream.STDOUT) == b"".join(expected)


@pytest.mark.slow
def test_last_lines_and_then_what_follows(jobs):
    app_id = jobs.submit("seq 5; while [ ! -e /go ]; do sleep 0.05; done; seq 6 8")
    wait_until(lambda: len(jobs.log(app_id)) == 5, "five lines")
    found = jobs.scheduler.log_blocks(app_id, [("r", 0)], LogQuery(last=2, should_tail=True))
    first = next(found).data
    subprocess.run(["docker", "exec", jobs.container(app_id)["Id"], "touch", "/go"], check=True, timeout=50)
    assert first + b"".join(block.data for block in found) == b"4\n5\n6\n7\n8\n"


@pytest.mark.slow
def test_following_over_restarts(jobs):
    """A line of each attempt may have the time of another: nothing is lost or doubled."""
    script = (
        "n=$$(cat /n 2>/dev/null || echo 0); echo $$((n+1)) > /n; "
        "seq $$((n*100+1)) $$((n*100+100)); [ $$n = 3 ]"
    )
    app_id = jobs.submit(jobs.role(script, max_retries=5))
    assert jobs.log(app_id, should_tail=True) == [f"{i}\n" for i in range(1, 401)]
    response = jobs.end_of(app_id)
    assert (response.state, response.num_restarts) == (AppState.SUCCEEDED, 3)
    assert jobs.log(app_id) == [f"{i}\n" for i in range(1, 401)]


@pytest.mark.slow
def test_following_several_over_a_restart_of_all(jobs):
    script = (
        "echo attempt; if [ ${replica_id} = 0 ] && [ ! -e /f ]; then touch /f; sleep 1; exit 1; fi; sleep 2"
    )
    app_id = jobs.submit(jobs.role(script, num_replicas=2, max_retries=1), grace_period=1)
    text = blocks(jobs, app_id, [("r", 0), ("r", 1)], should_tail=True)
    assert text == b"attempt\n" * 4
