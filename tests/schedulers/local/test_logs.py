"""Logs of local jobs: order between the streams, completeness, odd content, places."""

import os
import signal
import sys
from pathlib import Path

import pytest

from shunter import system
from shunter.errors import UsageError
from shunter.schedulers.api import LogQuery, Stream

from .conftest import role, wait_until

WRITER = """
import os, random, sys, time
how, count = sys.argv[1], int(sys.argv[2])
choose = random.Random(7).random
for i in range(count):
    share = {"alternating": i % 2, "random": choose() < 0.5, "rare": choose() < 0.01}[how]
    os.write(2 if share else 1, b"%d\\n" % i)
    if i % 50 == 49:
        time.sleep(0.001)  # so that the queue of a busy machine does not overflow
"""


def python(script: str, *args: str):
    program = role("")
    program.entrypoint, program.args = sys.executable, ["-c", script, *args]
    return program


def test_million_lines_are_followed_without_loss(jobs):
    app_id = jobs.submit(role("seq 1000000"))
    blocks = jobs.scheduler.log_blocks(app_id, [("r", 0)], LogQuery(should_tail=True))
    text = b"".join(block.data for block in blocks)
    assert text == b"".join(b"%d\n" % i for i in range(1, 1_000_001))


def test_without_inotify_nothing_is_lost(jobs, monkeypatch):
    monkeypatch.setattr(system, "open_file_events", lambda: None)
    app_id = jobs.submit(role("for i in 1 2 3; do echo $i; sleep 0.1; done"))
    assert jobs.log(app_id, should_tail=True) == ["1\n", "2\n", "3\n"]


def test_ten_megabyte_line(jobs):
    app_id, _ = jobs.run(role("head -c 10000000 /dev/zero | tr '\\0' x; echo; echo after"))
    first, second = jobs.log(app_id)
    assert (len(first), second) == (10_000_001, "after\n")


def test_attempts_follow_one_another(jobs):
    app_id, _ = jobs.run(role("echo out; echo err >&2; exit 1", max_retries=1))
    assert jobs.log(app_id) == ["out\n", "err\n"] * 2


def test_log_dir(jobs, tmp_path):
    app_id, response = jobs.run(role("echo hi", num_replicas=2), log_dir=str(tmp_path / "logs"))
    directory = tmp_path / "logs" / app_id / "r" / "1"
    assert (directory / "stdout.log").read_text() == "hi\n"
    assert jobs.log(app_id, k=1) == ["hi\n"]
    assert response.ui_url == f"file://{tmp_path}/logs/{app_id}"
    jobs.scheduler.delete(app_id)
    assert not (tmp_path / "logs" / app_id).exists()


def test_bad_regex_is_explained(jobs):
    app_id, _ = jobs.run(role("echo hi"))
    with pytest.raises(UsageError, match="regular expression"):
        jobs.log(app_id, regex="(")


def last_lines(jobs, app_id: str, last: int, **query) -> list[int]:
    blocks = jobs.scheduler.log_blocks(app_id, [("r", 0)], LogQuery(last=last, **query))
    return [int(line) for block in blocks for line in block.data.split()]


@pytest.mark.parametrize("count", [5, 3000, 40_000])
def test_last_lines_of_both_streams(jobs, count):
    app_id, _ = jobs.run(python(WRITER, "random", str(count)))
    whole = [int(line) for line in jobs.log(app_id)]
    streams = [
        [int(line) for line in jobs.log(app_id, streams=each)] for each in (Stream.STDOUT, Stream.STDERR)
    ]
    for last in (0, 1, 7, 2500):
        lines = last_lines(jobs, app_id, last)
        assert len(lines) == min(last, count)
        for stream in streams:
            mine = sorted(set(lines) & set(stream))
            assert mine == stream[len(stream) - len(mine) :]
        if system.HAS_SUBREAPER:  # elsewhere the order of what comes between two polls is a guess
            assert lines == whole[len(whole) - len(lines) :]
    stdout = streams[0]
    assert last_lines(jobs, app_id, 3, streams=Stream.STDOUT) == stdout[-3:]
    even = last_lines(jobs, app_id, 3, regex="[02468]$")  # reads everything
    assert even == [n for n in whole if n % 2 == 0][-3:]


def test_last_lines_then_following(jobs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app_id = jobs.submit(role("seq 10; while [ ! -e go ]; do sleep 0.02; done; echo end; rm go"))
    blocks = jobs.scheduler.log_blocks(app_id, [("r", 0)], LogQuery(should_tail=True, last=2))
    jobs.wait_for_line(app_id)
    text = next(blocks).data
    Path("go").touch()
    assert (text + b"".join(block.data for block in blocks)).endswith(b"9\n10\nend\n")


# ---- the merger alone


def test_what_a_running_job_has_just_written_is_there(jobs, tmp_path):
    """Also before its supervisor has recorded it, and before its last line has an end."""
    script = f"while ! [ -e {tmp_path}/go ]; do sleep 0.01; done; echo one; printf part; exec sleep 300"
    app_id = jobs.submit(role(script))
    wait_until(lambda: jobs.scheduler.describe(app_id).to_status().replicas()[0].started_at, "the replica")
    supervisor = jobs.state(app_id)["supervisor"][0]
    os.kill(supervisor, signal.SIGSTOP)
    (tmp_path / "go").touch()
    wait_until(lambda: jobs.log(app_id) == ["one\n", "part"], "what it wrote")
    os.kill(supervisor, signal.SIGCONT)
