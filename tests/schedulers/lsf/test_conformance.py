"""The conformance suite on a stand-in for LSF that really runs the jobs."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from shunter.specs import Resource
from shunter.testing import SchedulerConformance

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.usefixtures("scheduler")
class TestLsf(SchedulerConformance):
    cfg: ClassVar[dict[str, Any]] = {}
    resource = Resource(cpu=1, gpu=0, memMB=64)
    combined_is_exact = False
    time_resolution = 1.5

    @pytest.fixture
    def scheduler(self, lsf: Any) -> Any:
        from contextlib import closing

        from shunter.schedulers.lsf_scheduler.scheduler import create_scheduler

        with closing(create_scheduler("conformance")) as scheduler:
            yield scheduler
