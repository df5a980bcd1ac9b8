"""`slurm` passes the suite that every scheduler passes, on a real Slurm."""

from contextlib import closing

import pytest

from trainyard.schedulers.slurm.scheduler import create_scheduler
from trainyard.specs import RetryPolicy
from trainyard.testing import SchedulerConformance


@pytest.mark.slow
class TestSlurm(SchedulerConformance):
    retry_policies = tuple(RetryPolicy)
    combined_is_exact = False
    time_resolution = 1.5

    @pytest.fixture
    def scheduler(self, slurm):
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler
