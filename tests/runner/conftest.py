from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runner.fake_scheduler import FakeScheduler
from trainyard.runner import Runner
from trainyard.specs import AppDef, Role


@pytest.fixture
def runner() -> Iterator[Runner]:
    with Runner("sess", {"fake": FakeScheduler}) as made:
        yield made


@pytest.fixture
def fake(runner: Runner) -> FakeScheduler:
    scheduler = runner.scheduler("fake")
    assert isinstance(scheduler, FakeScheduler)
    return scheduler


@pytest.fixture
def app() -> AppDef:
    roles = [
        Role("trainer", "img", entrypoint="python", args=["t.py", "--id", "${app_id}"], num_replicas=2),
        Role("reader", "img", entrypoint="cat", env={"A": "1"}),
    ]
    return AppDef("digits", roles, {"team": "vision"})
