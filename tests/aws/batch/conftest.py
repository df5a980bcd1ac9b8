from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from shunter.backoff import Clock
from shunter.schedulers.aws_batch_scheduler.scheduler import AWSBatchScheduler, create_scheduler
from tests.aws.fake import FakeAws


@pytest.fixture
def still(aws: FakeAws) -> FakeAws:
    """AWS whose jobs do not run by themselves."""
    aws.batch.runs = False
    return aws


@pytest.fixture
def scheduler(aws: FakeAws) -> Iterator[AWSBatchScheduler]:
    with closing(create_scheduler("test")) as scheduler:
        yield scheduler


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts to submit, which take no time."""
    taken: list[float] = []
    monkeypatch.setattr(Clock, "sleep", lambda _, seconds: taken.append(seconds))
    return taken
