from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.api import Stream
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import create_scheduler
from shunter.specs import RetryPolicy
from shunter.testing import SchedulerConformance
from tests.sagemaker.remote.conftest import Cloud


@pytest.mark.slow
class TestAwsSageMaker(SchedulerConformance):
    image = "image:1"
    cfg: ClassVar[dict[str, Any]] = {
        "role": "arn:aws:iam::123456789012:role/Training",
        "instance_type": "ml.m5.large",
    }
    retry_policies: ClassVar[tuple[RetryPolicy, ...]] = ()
    # one stream, as text
    streams: ClassVar[tuple[Stream, ...]] = (Stream.COMBINED,)
    keeps_bytes: ClassVar[bool] = False

    @pytest.fixture
    def scheduler(self, cloud: Cloud) -> Iterator[Any]:
        made = create_scheduler("test")
        yield made
        made.close()

    def test_success_is_not_retried(self, scheduler: Any) -> None:
        with pytest.raises(ConfigError, match="max_retry_attempts"):
            self.submit(scheduler, self.role("true", max_retries=2))
