"""`local_docker` passes the suite that every scheduler passes, against a real daemon."""

import pytest

from shunter.specs import RetryPolicy
from shunter.testing import SchedulerConformance

from .conftest import Jobs


@pytest.mark.slow
class TestLocalDocker(SchedulerConformance):
    retry_policies = tuple(RetryPolicy)
    combined_is_exact = False

    @pytest.fixture
    def scheduler(self, image):
        type(self).image = image
        jobs = Jobs(image)
        yield jobs.scheduler
        jobs.remove_all()
