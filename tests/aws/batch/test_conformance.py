"""The suite that every scheduler passes, on our fake of AWS: its jobs are processes, its logs CloudWatch's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.aws.fake import FakeAws
from trainyard.schedulers.aws import logreplica
from trainyard.schedulers.aws.batch.scheduler import AWSBatchScheduler, create_scheduler
from trainyard.schedulers.base import Stream
from trainyard.testing import SchedulerConformance


class TestAwsBatch(SchedulerConformance):
    image = "fake/image:1"
    cfg = {"queue": "queue"}
    streams = (Stream.COMBINED,)
    keeps_bytes = False  # events are texts
    time_resolution = 1.0

    @pytest.fixture(autouse=True)
    def logs_are_complete_at_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(logreplica, "SETTLE", 0.2)

    @pytest.fixture
    def scheduler(self, aws: FakeAws) -> Iterator[AWSBatchScheduler]:
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler
