"""Ray passes the suite that every scheduler passes, on a real cluster of two nodes.

A job takes some seconds, so `make test-all` runs a part of the suite; SHUNTER_RAY_SUITE=all runs all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from shunter.schedulers.api import Scheduler
from shunter.schedulers.ray_scheduler.scheduler import create_scheduler
from shunter.specs import Resource, RetryPolicy
from shunter.testing import SchedulerConformance
from tests.ray_cluster import RayCluster

RUNS_ALL = os.environ.get("SHUNTER_RAY_SUITE") == "all"  # read once: tests have an environment of their own
CHOSEN = (
    "test_arguments_arrive_as_given",
    "test_blocks_of_all_replicas_hold_all_lines",
    "test_cancel_is_idempotent",
    "test_delete",
    "test_following_a_silent_job_ends_with_it",
    "test_job_is_listed_and_described",
    "test_many_lines_are_complete_and_in_order",
    "test_odd_bytes",
    "test_roles_and_replicas",
    "test_since_and_until",
    "test_streams",
    "test_unknown_job",
)


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestRay(SchedulerConformance):
    resource = Resource(cpu=0, gpu=0, memMB=32)
    retry_policies = tuple(RetryPolicy)
    combined_is_exact = False

    @pytest.fixture
    def scheduler(self, cluster: RayCluster) -> Iterator[Scheduler[Any]]:
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler


if not RUNS_ALL:
    for name in dir(SchedulerConformance):
        if name.startswith("test_") and name not in CHOSEN:
            setattr(TestRay, name, None)
