"""AWS Batch on moto's HTTP server, whose jobs are real containers: the conformance suite and the command line.

What moto does not have: live logs (they appear when a container has ended), retries, node numbers, exit codes and
nodes in descriptions, overrides of nodes, pages. For those see the tests on our fake.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.aws.moto_server import Moto, running_moto
from trainyard.schedulers.aws.batch.scheduler import create_scheduler
from trainyard.schedulers.base import Stream
from trainyard.specs import AppDef, AppState, Resource
from trainyard.testing import SchedulerConformance

pytestmark = [pytest.mark.xdist_group("moto"), pytest.mark.timeout(180)]
_BY_MOTO = "moto does not do this"


@pytest.fixture(scope="module")
def server() -> Iterator[Moto]:
    with running_moto() as moto:
        yield moto


@pytest.fixture
def moto(server: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    return server


class TestConformance(SchedulerConformance):
    streams = (Stream.COMBINED,)
    has_exit_codes = False
    can_follow = False
    keeps_bytes = False
    time_resolution = 1.5
    patience = 60

    @pytest.fixture
    def scheduler(self, moto: Moto) -> Any:
        self.moto = moto
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler

    @property
    def image(self) -> str:  # type: ignore[override]
        return self.moto.image

    @property
    def cfg(self) -> dict[str, Any]:  # type: ignore[override]
        return {"queue": self.moto.queue}

    @pytest.mark.skip(reason=_BY_MOTO)
    def test_retries_are_as_many_as_asked_for(self) -> None: ...
