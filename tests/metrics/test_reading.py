"""Metrics of real jobs of this machine, read once and on and on."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from shunter.metrics import MetricReader, read
from shunter.metrics import reader as reader_module
from shunter.runner import get_runner
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs import AppDef, Role
from shunter.specs.app import RetryPolicy
from shunter.specs.status import AppState
from shunter.specs.submission import Submission

SCRIPT = """
import json, sys
for step in range(0, 50, 10):
    print(json.dumps({"step": step, "loss": 1 / (step + 1)}), flush=True)
    print(f"step {step} acc={step / 100}", file=sys.stderr, flush=True)
"""


@pytest.fixture
def runner():
    with get_runner() as runner:
        yield runner


def start(runner, script, replicas=1, metrics=None, **fields):
    role = Role(
        "trainer", image="", entrypoint="python3", args=["-c", script], num_replicas=replicas, **fields
    )
    return runner.submit(Submission(app=AppDef("train", [role]), scheduler="local_cwd", metrics=metrics))


def test_what_each_replica_reports_by_json_and_expressions(runner):
    began = time.time()
    handle = start(runner, SCRIPT, 2, {"acc": r"acc=(\S+)", "step": r"^step (\d+)"})
    runner.wait(handle)
    found = read(runner, handle)  # and, on a slow machine, what the replicas use
    assert [name for name in found if "/" not in name] == ["loss", "acc"]
    assert [series.place for series in found["loss"]] == ["trainer/0", "trainer/1"]
    for series in found["loss"]:
        assert list(series.steps) == [0, 10, 20, 30, 40]
        assert series.values[1] == 1 / 11
        assert all(began - 1 <= moment <= time.time() for moment in series.times)
    assert list(found["acc"][1].steps) == [0, 10, 20, 30, 40]
    assert list(found["acc"][1].values) == [0, 0.1, 0.2, 0.3, 0.4]
    assert list(read(runner, handle, ["acc"])) == ["acc"]
    assert read(runner, handle, since=time.time() + 60) == {}


def test_a_metric_that_nobody_declared_is_found_by_its_name(runner):
    handle = start(runner, SCRIPT)
    runner.wait(handle)
    [series] = read(runner, handle, ["acc"])["acc"]
    assert list(series.values) == [0, 0.1, 0.2, 0.3, 0.4]
    # what a job records counts, and not the text of the same lines
    [series] = read(runner, handle, ["loss"])["loss"]
    assert list(series.steps) == [0, 10, 20, 30, 40]
    assert read(runner, handle, ["nothing"]) == {}
    # without a name, what looks like metrics is not mixed with what is recorded
    assert "acc" not in read(runner, handle)


TEXT = """
print("listening on port 8080, seed=7, version 1.5")
for epoch in range(1, 4):
    print(f"epoch {epoch} loss {1 / epoch:.2f} accuracy {1 - 1 / epoch:.2f} tokens={epoch}00 rank=0 size=3")
print("took 1.5 s, best: 0.5")
"""


@pytest.mark.parametrize(
    ("script", "names"),
    [
        (TEXT, ["loss", "accuracy", "tokens"]),
        ("print('lr=0.1, layers=3'); print('accuracy: 0.93')", ["lr", "accuracy"]),
        ("print('listening on port 8080, version 1.5, epoch 3')", []),
        (TEXT + """print('{"step": 1, "f1": 0.5}')""", ["f1"]),
    ],
)
def test_what_looks_like_metrics_if_there_are_no_others(runner, script, names):
    handle = start(runner, script)
    runner.wait(handle)
    assert [name for name in read(runner, handle) if not name.startswith("system/")] == names
    with MetricReader(runner, handle) as reader:
        reader.update()
        assert "loss" not in reader.by_name()


def test_large_logs_are_searched_in_part_for_other_metrics_than_those_at_their_beginning(runner, monkeypatch):
    monkeypatch.setattr(reader_module, "MOST_SEARCHED", 3_000_000)
    handle = start(
        runner,
        "for k in range(50_000): print(f'loss {k / 1000}', 'x' * 90)\n"
        "for k in (1, 2): print(f'late {k / 7}')",
    )
    runner.wait(handle)
    with MetricReader(runner, handle, discovers=True) as reader:
        reader.update()
        metrics = reader.by_name()
        assert (metrics["loss"][0].count, metrics["loss"][0].last) == (50_000, 49.999)
        assert "late" not in metrics
        assert "others if they are named" in reader.problems[0]
    assert read(runner, handle, ["late"])["late"][0].count == 2


@pytest.mark.slow
def test_a_large_log_is_read_in_parts_and_each_line_once(runner):
    handle = start(runner, "for k in range(100_000): print(f'loss {k / 1000}', 'x' * 90)")
    runner.wait(handle)
    with MetricReader(runner, handle, ["loss"], follow=True) as reader:
        reader.update(most_seconds=0)
        assert reader.is_reading
        assert not reader.is_over
        assert 0 < reader.by_name()["loss"][0].count < 100_000
        while not reader.is_over:
            reader.update(most_seconds=0)
        assert reader.by_name()["loss"][0].count == 100_000


def test_a_rerun_keeps_the_expressions(runner):
    handle = start(runner, SCRIPT, metrics={"acc": r"acc=(\S+)"})
    runner.wait(handle)
    again = runner.rerun(handle)
    runner.wait(again)
    assert read(runner, again)["acc"][0].last == 0.4


def test_following_reads_nothing_twice(runner, tmp_path):
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    script = (
        f"import json\nfor step, line in enumerate(open({str(fifo)!r})):\n"
        "    print(json.dumps({'step': step, 'loss': float(line)}), flush=True)\n"
    )
    handle = start(runner, script)
    with open(fifo, "w") as pipe, MetricReader(runner, handle, follow=True) as reader:
        for number in (1, 2, 3):
            pipe.write(f"{number}\n")
            pipe.flush()
            while len(reader.by_name().get("loss", [[]])[0]) < number:
                reader.update()
            [series] = reader.by_name()["loss"]
            assert list(series.values) == list(range(1, number + 1))
        reader.update()
        assert list(reader.by_name()["loss"][0].values) == [1, 2, 3]
        pipe.close()
        runner.wait(handle)
        while not reader.is_over:
            reader.update(timeout=0.1)
        assert list(reader.by_name()["loss"][0].values) == [1, 2, 3]


@pytest.mark.slow
def test_one_update_reads_what_a_running_job_has_written(runner, tmp_path, monkeypatch):
    monkeypatch.setattr(reader_module, "_QUIET", 3.0)  # seconds, on a machine that is busy
    monkeypatch.setattr(reader_module, "_MOST_WAITING", 60.0)
    ready, fifo = tmp_path / "ready", tmp_path / "go"
    os.mkfifo(fifo)
    script = (
        "import time\n"
        "for step in range(200):\n"  # lines with times of their own, so that each is a block
        "    print(f'loss {step}', flush=True)\n"
        "    time.sleep(.002)\n"
        f"open({str(ready)!r}, 'w').close()\n"
        f"open({str(fifo)!r}).read()\n"
    )
    handle = start(runner, script)
    while not ready.exists():
        time.sleep(0.05)
    with MetricReader(runner, handle, ["loss"], follow=True) as reader:
        while not reader.update(timeout=1.0):
            pass
        assert reader.by_name()["loss"][0].count == 200
        fifo.write_text("")
        runner.wait(handle)


def test_a_restart_from_a_checkpoint_leaves_one_line(runner, tmp_path):
    mark = tmp_path / "mark"
    script = (
        "import json, os, sys\n"
        f"first = not os.path.exists({str(mark)!r})\n"
        f"open({str(mark)!r}, 'w').close()\n"
        "for step in range(0 if first else 2, 5):\n"
        "    print(json.dumps({'step': step, 'loss': step + (0 if first else 100)}), flush=True)\n"
        "    if first and step == 3: sys.exit(1)\n"
    )
    handle = start(runner, script, max_retries=1, retry_policy=RetryPolicy.REPLICA)
    assert runner.wait(handle).num_restarts == 1
    [series] = read(runner, handle)["loss"]
    assert list(zip(series.steps, series.values, strict=True)) == [
        (0, 0),
        (1, 1),
        (2, 102),
        (3, 103),
        (4, 104),
    ]


def test_a_last_line_without_its_end_counts_when_the_job_is_over(runner):
    handle = start(runner, 'import sys; sys.stdout.write(\'{"step": 1, "loss": 2}\')')
    runner.wait(handle)
    assert read(runner, handle)["loss"][0].last == 2


def test_each_rank_in_a_log_is_a_series(runner):
    script = 'for rank in (0, 1): print(\'[%d]:{"step": 1, "loss": %d}\' % (rank, rank + 5))'
    handle = start(runner, script)
    runner.wait(handle)
    found = read(runner, handle)["loss"]
    assert [(series.place, series.last) for series in found] == [
        ("trainer/0 rank 0", 5),
        ("trainer/0 rank 1", 6),
    ]


def test_a_long_log_is_read_in_blocks_with_its_times(runner):
    script = (
        "import json\nfor step in range(60000):\n"
        "    print('x' * 60)\n"
        "    if step % 1000 == 0: print(json.dumps({'step': step, 'loss': step}), flush=True)\n"
    )
    handle = start(runner, script)
    runner.wait(handle)
    [series] = read(runner, handle)["loss"]
    assert list(series.steps) == list(range(0, 60000, 1000))
    times = list(series.times)
    assert times == sorted(times)
    assert not any(map(math.isnan, times))
    job = JobDirectory.find(handle.rpartition("/")[2])
    assert os.path.getsize(os.path.join(job.layout()[0][2], "stdout.log")) > 3 << 20


RECORDED = Path(__file__).parent / "recorded"


def growing_events(folder):
    """Return the name of an event file, its content now and later, and how many losses those have."""
    content = (RECORDED / "tensorboardX.tfevents.recorded").read_bytes()
    return "runs/a.tfevents.1", [content[: len(content) // 2], content], [2, 5]


def growing_database(folder):
    """Return the same of a database of Trackio."""
    path = folder / "demo.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript((RECORDED / "trackio.sql").read_text())
        contents = [path.read_bytes()]
        database.execute(
            "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics)"
            " VALUES ('r', '2026-11-22T23:10:00Z', 'run-a', 51, '{\"loss\": 0.05}')"
        )
        database.commit()
        contents.append(path.read_bytes())
    return "trackio/demo.db", contents, [6, 7]


@pytest.mark.slow
@pytest.mark.parametrize("growing", [growing_events, growing_database])
def test_files_in_s3_are_read_as_they_grow(runner, monkeypatch, tmp_path, growing):
    from moto import mock_aws

    from shunter.metrics import stored_results
    from shunter.schedulers.aws.session import AwsSession

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.setattr(stored_results, "LISTED_EVERY", 0.0)
    handle = start(runner, "", 2)
    ended = runner.wait(handle)
    ended.results = "s3://results/job/output"
    states = [AppState.RUNNING, AppState.RUNNING, AppState.SUCCEEDED]
    name, contents, counts = growing(tmp_path)
    with mock_aws():
        client = AwsSession().client("s3")
        client.create_bucket(Bucket="results")
        monkeypatch.setattr(runner, "status", lambda _: replace(ended, state=states.pop(0)))
        with MetricReader(runner, handle) as reader:
            sizes = []
            for content in (*contents, contents[-1]):
                client.put_object(Bucket="results", Key=f"job/output/trainer-1/{name}", Body=content)
                client.put_object(Bucket="results", Key="job/output/model.bin", Body=b"x")
                reader.update()
                [series] = reader.by_name()["loss"]
                sizes.append(len(series))
            assert series.place == "trainer/1"
            assert sizes == [*counts, counts[-1]]
            copy = reader._stored.folder
            assert [path.name for path in Path(copy).rglob("*") if path.is_file()] == [Path(name).name]
        assert not Path(copy).exists()
