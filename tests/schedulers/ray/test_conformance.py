"""Ray passes the suite that every scheduler passes, on a real cluster of two nodes.

A job takes some seconds, so only what differs between schedulers is in `make test-all`;
TRAINYARD_RAY_ALL=1 runs all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.ray_cluster import RayCluster
from trainyard.schedulers.base import Scheduler
from trainyard.schedulers.ray.scheduler import create_scheduler
from trainyard.specs import Resource, RetryPolicy
from trainyard.testing import SchedulerConformance

RUN_ALL = os.environ.get("TRAINYARD_RAY_ALL") == "1"


@pytest.mark.slow
class TestRay(SchedulerConformance):
    resource = Resource(cpu=0, gpu=0, memMB=32)
    retry_policies = tuple(RetryPolicy)
    combined_is_exact = False
    patience = 50

    @pytest.fixture
    def scheduler(self, cluster: RayCluster) -> Iterator[Scheduler[Any]]:
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler
