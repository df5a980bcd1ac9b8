"""Logs: all of it, as it was written, while it is written and afterwards; by CloudWatch's own calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import botocore.exceptions
import pytest

from .conftest import GROUP

if TYPE_CHECKING:
    from .conftest import Jobs


@pytest.mark.slow
def test_a_burst_arrives_whole(jobs: Jobs, mode: str) -> None:
    """100,000 lines, and the program ends at once."""
    script = "sys.stdout.write(''.join(f'line {i}\\n' for i in range(100_000)))"
    name = jobs.run(script)["TrainingJobName"]
    lines = jobs.lines(name)
    assert len(lines) == 100_000
    assert lines == [f"line {i}" for i in range(100_000)]


def test_bytes_of_any_kind_are_kept(jobs: Jobs, mode: str) -> None:
    script = r"""
out = sys.stdout.buffer
out.write(b'caf\xe9\n\n   indented\t\n')
out.write(b'10%\r20%\r30%\n')
out.write('\u00fc'.encode() * 100_000 + b'\n')
out.write(b'no end')
"""
    name = jobs.run(script)["TrainingJobName"]
    lines = jobs.lines(name)
    assert lines == ["caf\ufffd", "", "   indented\t", "10%\r20%\r30%", "\u00fc" * 100_000, "no end"]


@pytest.mark.slow
def test_both_streams_of_every_host(jobs: Jobs, mode: str) -> None:
    script = """
for i in range(200):
    print(HOST, 'out', i, flush=True)
    print(HOST, 'err', i, file=sys.stderr, flush=True)
"""
    name = jobs.run(script, hosts=2)["TrainingJobName"]
    for host in ("algo-1", "algo-2"):
        lines = jobs.lines(name, host)
        assert sorted(lines) == sorted(f"{host} {s} {i}" for s in ("out", "err") for i in range(200))
        for stream in ("out", "err"):
            own = [line for line in lines if f" {stream} " in line]
            assert own == [f"{host} {stream} {i}" for i in range(200)]


def test_streams_are_named_as_on_the_service(jobs: Jobs, processes: str) -> None:
    name = jobs.run("print('x')", hosts=2)["TrainingJobName"]
    streams = jobs.logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")["logStreams"]
    for stream, host in zip(streams, ("algo-1", "algo-2"), strict=True):
        prefix, _, milliseconds = stream["logStreamName"].rpartition("-")
        assert prefix == f"{name}/{host}"
        assert int(milliseconds) == stream["creationTime"]
        assert stream["creationTime"] <= stream["firstEventTimestamp"] <= stream["lastEventTimestamp"]


def test_logs_that_do_not_exist(jobs: Jobs, processes: str) -> None:
    for group, stream in ((GROUP, "no/such"), ("/other", "x"), (GROUP, "../../x")):
        with pytest.raises(jobs.logs.exceptions.ResourceNotFoundException, match="does not exist"):
            jobs.logs.get_log_events(logGroupName=group, logStreamName=stream)
    stream = jobs.streams(jobs.run("print('x')")["TrainingJobName"])[0]
    with pytest.raises(botocore.exceptions.ClientError, match="nextToken is invalid") as error:
        jobs.logs.get_log_events(logGroupName=GROUP, logStreamName=stream, nextToken="x")
    assert error.value.response["Error"]["Code"] == "InvalidParameterException"
