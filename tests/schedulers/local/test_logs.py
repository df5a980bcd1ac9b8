"""Logs of local jobs: order between the streams, completeness, odd content, places."""

import itertools
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter import system
from shunter.errors import UsageError
from shunter.schedulers.api import LogQuery, Stream
from shunter.schedulers.exec.process.log_index import COUNTED, SETTLED, IndexReader, make_record
from shunter.schedulers.exec.process.log_reader import Merger, ReplicaLog
from shunter.schedulers.exec.process.log_recorder import LogRecorder, ReplicaRecorder

from .conftest import linux_only, role, wait_until

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


def misplaced(lines) -> int:
    """Return how far at most a line is from its place, the lines being numbered."""
    return max(abs(place - int(line)) for place, line in enumerate(lines))


@linux_only
@pytest.mark.slow
@pytest.mark.parametrize("how", ["alternating", "random", "rare"])
@pytest.mark.parametrize("follow", [False, True])
def test_streams_are_combined_in_the_order_of_writing(jobs, how, follow):
    count = 20_000
    app_id = jobs.submit(python(WRITER, how, str(count)))
    if not follow:
        jobs.end_of(app_id)
    lines = jobs.log(app_id, should_tail=follow)
    assert sorted(map(int, lines)) == list(range(count))
    # A write that falls between the kernel's two steps of one may be seen a line late on a busy machine.
    assert misplaced(lines) <= 2
    jobs.end_of(app_id)
    stdout, stderr = (jobs.log(app_id, streams=stream) for stream in (Stream.STDOUT, Stream.STDERR))
    assert sorted(map(int, stdout)) == list(map(int, stdout))
    assert len(stdout) + len(stderr) == count


@linux_only
def test_prints_of_unbuffered_python_are_in_order(jobs):
    script = (
        "import sys, time\n"
        "for i in range(5000):\n"
        "    print(i, file=(sys.stdout, sys.stderr)[i % 3 == 0])\n"
        "    if i % 50 == 3: time.sleep(0.001)\n"
    )
    app_id, _ = jobs.run(python(script))
    lines = jobs.log(app_id)
    assert len(lines) == 5000
    assert misplaced(lines) <= 2


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


def test_progress_bars_keep_their_carriage_returns(jobs):
    app_id, _ = jobs.run(role(r"printf '\r10%%\r20%%\r\ndone'"))
    assert "".join(jobs.log(app_id)) == "\r10%\r20%\r\ndone"


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

STREAMS = st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=12)), max_size=60)


@given(STREAMS, st.data())
def test_merging_never_loses_or_doubles_anything(writes, data):
    """Whatever the index says, all bytes of each stream come out, in their order."""
    merger, out = Merger(), []
    texts, ends = [b"", b""], [0, 0]
    rest = list(writes)
    while rest:
        count = data.draw(st.integers(1, len(rest)))
        grown = [b"", b""]
        for stream, text in rest[:count]:
            grown[stream] += text
        order = bytes(data.draw(st.lists(st.integers(0, 1), max_size=8)))
        quality = data.draw(st.sampled_from([0, COUNTED, COUNTED | SETTLED]))
        ends = [end + len(part) for end, part in zip(ends, grown, strict=True)]
        out.append(merger.add(make_record(0, (ends[0], ends[1]), order, quality), (grown[0], grown[1])))
        texts = [text + part for text, part in zip(texts, grown, strict=True)]
        rest = rest[count:]
    out.append(merger.rest())
    assert sorted(b"".join(out)) == sorted(texts[0] + texts[1])
    for one, other in ((0, 1), (1, 0)):
        if not texts[other]:
            assert b"".join(out) == texts[one]


@given(st.lists(st.integers(0, 1), max_size=200), st.integers(1, 2), st.data())
def test_lines_are_placed_exactly_where_they_were_written(order, writes_per_line, data):
    """Windows may be cut anywhere, and sizes may run ahead of the writes that were counted."""
    merger, out = Merger(), []
    order = [0, 1, *order]  # a first window, of a line each, shows the rhythm
    line_of = [b"%d\n" % i for i in range(len(order))]
    counted = known = 0
    while counted < len(order):
        before, first = known, counted == 0
        known = 2 if first else data.draw(st.integers(max(known, counted + 1), len(order)))
        counted_to = 2 if first else data.draw(st.integers(counted + 1, known))
        grown = [
            b"".join(line_of[i] for i in range(before, known) if order[i] == stream) for stream in (0, 1)
        ]
        writes = bytes(which for which in order[counted:counted_to] for _ in range(writes_per_line))
        quality = COUNTED | (SETTLED if counted_to == known else 0)
        out.append(merger.add(make_record(0, (0, 0), writes, quality), (grown[0], grown[1])))
        counted = counted_to
    assert b"".join(out) + merger.rest() == b"".join(line_of)


@linux_only
# ---- recorder and reader together, on files of this test


def test_recorder_and_reader(tmp_path):
    paths = (str(tmp_path / "stdout.log"), str(tmp_path / "stderr.log"))
    for path in paths:
        Path(path).touch()
    recorder = LogRecorder(system.open_file_events())
    replica = ReplicaRecorder(paths, str(tmp_path / "index"))
    recorder.add(replica)
    log = ReplicaLog.at(str(tmp_path), str(tmp_path / "index"), Stream.COMBINED)
    files = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in paths]
    expected, got = [], b""
    for i in itertools.count():
        os.write(files[i % 2], b"%d\n" % i)
        expected.append(b"%d\n" % i)
        if i % 7 == 0:
            recorder.record_changes()
            got += b"".join(part.data for part in log.parts())
        if i == 100:
            break
    recorder.finish(replica)
    got += b"".join(part.data for part in log.rest())
    assert got == b"".join(expected)
    times = [record.time_ns for record in IndexReader(str(tmp_path / "index")).new_records()]
    assert times == sorted(times)
    assert abs(times[-1] / 1e9 - datetime.now(UTC).timestamp()) < 60
    log.close()
    recorder.close()
    for fd in files:
        os.close(fd)


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
