from __future__ import annotations

import pytest

from shunter.testing.conformance import SchedulerConformance
from tests.schedulers.hpc.fake_cluster import FakeCluster


@pytest.mark.slow
class TestFakeCluster(SchedulerConformance):
    combined_is_exact = False

    @pytest.fixture
    def scheduler(self, tmp_path, monkeypatch):
        monkeypatch.setenv("FAKE_QUEUE", str(tmp_path / "queue"))
        (tmp_path / "queue").mkdir()
        scheduler = FakeCluster()
        yield scheduler
        scheduler.close()
