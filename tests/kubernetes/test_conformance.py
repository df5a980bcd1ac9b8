"""The conformance suite, against pods that are processes behind a stub of the API."""

from __future__ import annotations

from typing import Any

import pytest

from shunter.schedulers.api import Stream
from shunter.specs import RetryPolicy
from shunter.testing import SchedulerConformance


@pytest.mark.slow
class TestKubernetes(SchedulerConformance):
    image = "busybox:1"
    retry_policies = (RetryPolicy.REPLICA,)
    streams = (Stream.COMBINED,)

    @pytest.fixture
    def scheduler(self, scheduler: Any) -> Any:
        return scheduler
