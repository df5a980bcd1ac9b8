"""Logs of jobs on AWS Batch: of every replica and attempt, through the command line too."""

from __future__ import annotations

import threading

import pytest

from shunter.errors import UnknownAppException, UsageError
from shunter.schedulers.api import LogQuery, Stream
from shunter.schedulers.aws import cloudwatch
from shunter.schedulers.aws_batch_scheduler.scheduler import AWSBatchScheduler
from tests.aws.batch.jobs import role
from tests.aws.batch.test_observing import submit
from tests.aws.fake import FakeAws


@pytest.fixture(autouse=True)
def logs_are_complete_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudwatch, "SETTLE", 0.2)


@pytest.mark.slow
def test_attempts_in_sequence(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    app_id, job_id = submit(still, scheduler, role(max_retries=2))
    for attempt in range(3):
        still.batch.advance(job_id, "RUNNING")
        still.batch.log(job_id, f"attempt {attempt}", "done")
        still.batch.finish(job_id, 1)
    lines = list(scheduler.log_iter(app_id, "trainer"))
    assert lines == [text for k in range(3) for text in (f"attempt {k}\n", "done\n")]


@pytest.mark.slow
def test_each_node_has_its_log(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    app_id, job_id = submit(still, scheduler, role(num_replicas=2), role("reader"), log_group="/jobs/mine")
    still.batch.advance(job_id, "RUNNING")
    for node in range(3):
        still.batch.log(f"{job_id}#{node}", f"node {node}")
    for child in range(3):
        still.batch.finish(f"{job_id}#{2 - child}", 0)
    assert list(scheduler.log_iter(app_id, "trainer", 1)) == ["node 1\n"]
    assert list(scheduler.log_iter(app_id, "reader", 0)) == ["node 2\n"]
    groups = {call.params["logGroupName"] for call in still.calls if call.operation == "FilterLogEvents"}
    assert groups == {"/jobs/mine"}


@pytest.mark.slow
def test_following_begins_before_the_stream_is_there_and_ends_with_the_job(
    still: FakeAws, scheduler: AWSBatchScheduler
) -> None:
    app_id, job_id = submit(still, scheduler)
    seen: list[str] = []
    first = threading.Event()

    def follow() -> None:
        for line in scheduler.log_iter(app_id, "trainer", should_tail=True):
            seen.append(line)
            first.set()

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    still.batch.advance(job_id, "RUNNING")
    still.batch.log(job_id, "one")
    assert first.wait(30)
    still.batch.log(job_id, "two")
    still.batch.finish(job_id, 0)
    reader.join(30)
    assert not reader.is_alive()
    assert seen == ["one\n", "two\n"]


@pytest.mark.parametrize("stream", [Stream.STDOUT, Stream.STDERR])
def test_streams_cannot_be_distinguished(
    still: FakeAws, scheduler: AWSBatchScheduler, stream: Stream
) -> None:
    app_id, _ = submit(still, scheduler)
    with pytest.raises(ValueError, match="COMBINED"):
        scheduler.log_iter(app_id, "trainer", streams=stream)
    with pytest.raises(UsageError, match=str(stream)):
        scheduler.log_blocks(app_id, [("trainer", 0)], LogQuery(streams=stream))


def test_what_does_not_exist(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    with pytest.raises(UnknownAppException):
        scheduler.log_iter("queue:none", "trainer")
    app_id, _ = submit(still, scheduler)
    with pytest.raises(UsageError, match="trainer/5"):
        scheduler.log_iter(app_id, "trainer", 5)
