"""The local scheduler passes the suite that every scheduler passes."""

from contextlib import closing

import pytest

from shunter.schedulers.local_scheduler.scheduler import create_scheduler
from shunter.specs import RetryPolicy
from shunter.testing import SchedulerConformance


class TestLocalCwd(SchedulerConformance):
    retry_policies = tuple(RetryPolicy)
    time_resolution = 0.5
    combined_is_exact = False

    @pytest.fixture
    def scheduler(self):
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler
