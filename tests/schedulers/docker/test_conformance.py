"""`local_docker` passes the suite that every scheduler passes, against a real daemon."""

from contextlib import closing

import pytest

from trainyard.schedulers.docker.scheduler import create_scheduler
from trainyard.specs import RetryPolicy
from trainyard.testing import SchedulerConformance


class TestLocalDocker(SchedulerConformance):
    retry_policies = tuple(RetryPolicy)
    time_resolution = 0.3
    combined_is_exact = False
    image = "pytest:1"

    @pytest.fixture
    def scheduler(self):
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler
