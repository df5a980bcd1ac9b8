"""What goes wrong while CloudWatch Logs are read, and how it is survived or said."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from shunter.errors import BackendError
from shunter.schedulers.aws import cloudwatch
from shunter.schedulers.aws.aws_errors import AwsCredentialsError, AwsForbiddenError
from tests.aws.logtools import Rig, clock_of, logs_client, rig


@pytest.fixture
def job() -> Iterator[Rig]:
    with rig() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["throttle", "server_error", "drop", "truncate", "lose_answer", "repeat"])
@pytest.mark.parametrize("query", [{}, {"should_tail": True}, {"last": 400}])
def test_faults_are_survived(job: Rig, kind: str, query: dict[str, Any]) -> None:
    lines = [f"{i}" for i in range(400)]
    job.put(0, *lines)
    job.aws.logs.page_events = 50
    clock_of(job).at(20, job.end)
    if not query.get("should_tail"):
        job.end_long_ago()
    for skip in (0, 3, 4, 5, 12):
        job.aws.faults.add("", kind, skip=skip)
    assert job.text(**query).split() == lines
    assert len(job.aws.faults.happened) >= 3


def test_credentials_that_expire_are_renewed(job: Rig) -> None:
    job.put(0, *(f"{i}" for i in range(100)))
    job.end_long_ago()
    job.aws.logs.page_events = 10
    job.aws.faults.add("FilterLogEvents", "expired_token", skip=5)
    with mock.patch.dict(os.environ, job.aws.environ()):
        assert job.text(should_tail=True).split() == [f"{i}" for i in range(100)]
    assert job.session.client("logs") is not job.client
    job.session.close()


def test_credentials_that_cannot_be_renewed(job: Rig) -> None:
    job.put(0, "one")
    job.aws.faults.add("FilterLogEvents", "expired_token", times=None)
    with (
        mock.patch.dict(os.environ, job.aws.environ()),
        pytest.raises(AwsCredentialsError, match=r"FilterLogEvents.*expired"),
    ):
        job.read(should_tail=True)
    assert clock_of(job).elapsed < 10
    job.session.close()


def test_no_permission_is_said_at_once(job: Rig) -> None:
    job.put(0, "one")
    job.aws.faults.add("FilterLogEvents", "denied", times=None)
    with pytest.raises(AwsForbiddenError, match="lacks the permission logs:FilterLogEvents"):
        job.read(should_tail=True)
    assert job.aws.count("FilterLogEvents") == 1


def test_a_service_that_never_answers_is_given_up_soon(job: Rig) -> None:
    job.aws.faults.add("FilterLogEvents", "drop", times=None)
    with pytest.raises(BackendError, match="FilterLogEvents"):
        job.read(should_tail=True)
    assert 30 <= clock_of(job).elapsed < 90


def test_a_service_that_did_answer_is_given_longer(job: Rig) -> None:
    job.put(0, "one")
    job.aws.faults.add("FilterLogEvents", "server_error", times=None, skip=3)
    clock_of(job).at(300, job.aws.faults.clear)
    clock_of(job).at(310, lambda: job.put(0, "two"))
    clock_of(job).at(320, job.end)
    assert job.text(should_tail=True).split() == ["one", "two"]


def test_following_goes_on_where_it_failed(job: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudwatch, "REMEMBERED", 50)
    clock = clock_of(job)
    lines = [f"{i}" for i in range(500)]
    job.put(0, *((clock.ms(i / 100 - 1000), line) for i, line in enumerate(lines)))
    job.aws.logs.page_events = 20
    job.aws.faults.add("FilterLogEvents", "server_error", times=12, skip=8)
    clock.at(200, job.end)
    assert job.text(should_tail=True).split() == lines
    assert len(job.aws.faults.happened) == 12


def test_a_job_out_of_sight_goes_on_being_read(job: Rig) -> None:
    """Not seeing a job is not the job ending."""
    clock = clock_of(job)
    job.put(0, "one")

    def hide() -> None:
        try:
            logs_client(job.aws, aws_access_key_id="x").describe_log_groups()
        except Exception as error:
            job.failures = [job.session.translated(error, "logs", "DescribeLogGroups")] * 5

    job.aws.faults.add("DescribeLogGroups", "server_error")
    clock.at(10, hide)
    clock.at(60, lambda: job.put(0, "two"))
    clock.at(100, job.end)
    assert job.text(should_tail=True).split() == ["one", "two"]
    assert job.failures == []


def test_an_error_of_the_job_is_raised(job: Rig) -> None:
    job.put(0, "one")
    clock_of(job).at(10, lambda: job.failures.append(BackendError("not allowed")))
    reader = job.blocks(should_tail=True)
    assert next(reader).data == b"one\n"
    with pytest.raises(BackendError, match="not allowed"):
        next(reader)
