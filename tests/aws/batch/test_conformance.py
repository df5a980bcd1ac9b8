"""The suite that every scheduler passes, on our fake of AWS, whose jobs are processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shunter.schedulers.api import Stream
from shunter.schedulers.aws import cloudwatch
from shunter.schedulers.aws_batch_scheduler.scheduler import AWSBatchScheduler, create_scheduler
from shunter.testing import SchedulerConformance
from tests.aws.fake import FakeAws


@pytest.mark.slow
class TestAwsBatch(SchedulerConformance):
    image = "fake/image:1"
    cfg = {"queue": "queue"}
    streams = (Stream.COMBINED,)
    keeps_bytes = False  # events are texts
    time_resolution = 1.0

    @pytest.fixture(autouse=True)
    def logs_are_complete_at_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cloudwatch, "SETTLE", 0.2)

    @pytest.fixture
    def scheduler(self, aws: FakeAws) -> Iterator[AWSBatchScheduler]:
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler

    # What a multi-node job cannot do, and an array job can: go on when its first replica has ended, and fail
    # by any replica rather than by the first.

    @pytest.mark.slow
    def test_blocks_of_all_replicas_hold_all_lines(self, scheduler: AWSBatchScheduler) -> None:
        self.cfg = {**self.cfg, "array": True}
        super().test_blocks_of_all_replicas_hold_all_lines(scheduler)

    def test_one_failure_among_replicas_fails_the_job(self, scheduler: AWSBatchScheduler) -> None:
        self.cfg = {**self.cfg, "array": True}
        super().test_one_failure_among_replicas_fails_the_job(scheduler)

    def test_lines_keep_their_white_space(self, scheduler: AWSBatchScheduler) -> None:
        """As everywhere, but for empty lines, which CloudWatch does not take."""
        app_id, _ = self.run(scheduler, self.role(r"printf '  two\n\n\tthree \nlast'"))
        assert self.lines(scheduler, app_id) == ["  two\n", "\tthree \n", "last\n"]

    @pytest.mark.slow
    def test_roles_and_replicas(self, scheduler: AWSBatchScheduler, tmp_path: Path) -> None:
        """The first replica ends last: with it a multi-node job ends."""
        done = tmp_path / "done"
        done.mkdir()
        first = f"until [ $$(ls {done} | wc -l) = 2 ]; do sleep 0.02; done"
        self.role = lambda script, name="worker", **fields: SchedulerConformance.role(  # type: ignore[method-assign]
            self,
            f'if [ "$$TORCHX_RANK0_HOST" = localhost ]; then {first}; {script};'
            f" else {script}; : >{done}/$$AWS_BATCH_JOB_NODE_INDEX; fi",
            name,
            **fields,
        )
        super().test_roles_and_replicas(scheduler)
