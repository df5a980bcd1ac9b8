"""The conformance suite on a real Grid Engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, ClassVar

import pytest

from shunter.schedulers.api import Scheduler
from shunter.schedulers.sge_scheduler.scheduler import create_scheduler
from shunter.specs import Resource
from shunter.testing import SchedulerConformance
from tests.grid_engine import GridEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class TestSge(SchedulerConformance):
    cfg: ClassVar[dict[str, Any]] = {"pe": "mpi", "memory": ""}
    resource = Resource(cpu=1, gpu=0, memMB=64)
    combined_is_exact = False
    time_resolution = 1.5

    @pytest.fixture
    def scheduler(self, engine: GridEngine, home: Any) -> Iterator[Scheduler[Any]]:
        with closing(create_scheduler("conformance")) as scheduler:
            yield scheduler
