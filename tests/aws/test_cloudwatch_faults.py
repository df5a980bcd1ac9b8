"""What goes wrong while CloudWatch Logs are read, and how it is survived or said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shunter.errors import BackendError
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
        job.aws.faults.add("GetLogEvents", kind, skip=skip)
    job.aws.faults.add("DescribeLogStreams", kind, times=2)
    assert job.text(**query).split() == lines
    assert len(job.aws.faults.happened) >= 3


def test_a_token_that_has_expired(job: Rig) -> None:
    lines = [f"{i // 3}" for i in range(500)]
    job.put(0, *lines)
    job.end_long_ago()
    job.aws.logs.page_events = 50
    is_going_on = lambda params: "nextToken" in params  # noqa: E731
    job.aws.faults.add("GetLogEvents", "invalid_page_token", skip=2, when=is_going_on)
    job.aws.faults.add("GetLogEvents", "invalid_page_token", skip=5, when=is_going_on)
    assert job.text().split() == lines
    job.aws.faults.add("GetLogEvents", "invalid_page_token", skip=2, when=is_going_on)
    assert job.text(last=400).split() == lines[-400:]
    assert len(job.aws.faults.happened) == 3


def test_credentials_that_expire_are_renewed(job: Rig) -> None:
    job.put(0, *(f"{i}" for i in range(100)))
    job.end_long_ago()
    job.aws.logs.page_events = 10
    job.aws.faults.add("GetLogEvents", "expired_token", skip=5)
    made = []

    def renew() -> Any:
        made.append(logs_client(job.aws))
        return made[-1]

    assert job.text(options={"renew": renew}).split() == [f"{i}" for i in range(100)]
    assert len(made) == 1


@pytest.mark.parametrize("with_renewal", [True, False])
def test_credentials_that_cannot_be_renewed(job: Rig, with_renewal: bool) -> None:
    job.put(0, "one")
    job.aws.faults.add("GetLogEvents", "expired_token", times=None)
    options = {"renew": lambda: logs_client(job.aws)} if with_renewal else {}
    with pytest.raises(BackendError, match=r"GetLogEvents.*expired"):
        job.read(options=options, should_tail=True)
    assert clock_of(job).elapsed < 1


def test_no_permission_is_said_at_once(job: Rig) -> None:
    job.put(0, "one")
    job.aws.faults.add("GetLogEvents", "denied", times=None)

    def translate(error: Exception, operation: str) -> Exception:
        return BackendError(f"may not {operation}: {error}")

    with pytest.raises(
        BackendError, match=r"may not GetLogEvents.*not authorized to perform: logs:GetLogEvents"
    ):
        job.read(options={"translate": translate}, should_tail=True)
    assert job.aws.count("GetLogEvents") == 1


@pytest.mark.parametrize("kind", ["denied", "server_error"])
def test_what_only_helps_to_wait_is_not_needed(job: Rig, kind: str) -> None:
    job.aws.faults.add("DescribeLogStreams", kind, times=None)
    job.put(0, "one")
    job.put(0, "two", visible_after=4)
    job.end()
    assert job.text().split() == ["one", "two"]


def test_a_service_that_never_answers_is_given_up_soon(job: Rig) -> None:
    job.aws.faults.add("GetLogEvents", "drop", times=None)
    with pytest.raises(BackendError, match="GetLogEvents"):
        job.read(should_tail=True)
    assert 30 <= clock_of(job).elapsed < 90


def test_a_service_that_did_answer_is_given_longer(job: Rig) -> None:
    job.put(0, "one")
    job.aws.faults.add("GetLogEvents", "server_error", times=None, skip=3)
    clock_of(job).at(300, job.aws.faults.clear)
    clock_of(job).at(310, lambda: job.put(0, "two"))
    clock_of(job).at(320, job.end)
    assert job.text(should_tail=True).split() == ["one", "two"]


def test_a_job_out_of_sight_goes_on_being_read(job: Rig) -> None:
    """Not seeing a job is not the job ending."""
    clock = clock_of(job)
    job.put(0, "one")

    def hide() -> None:
        try:
            logs_client(job.aws, aws_access_key_id="x").describe_log_groups()
        except Exception as error:
            job.failures = [error] * 5

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
