from __future__ import annotations

from collections.abc import Iterator

import pytest

from shunter.runner import Runner
from shunter.runner.history import History
from shunter.specs import AppDef, Role
from tests.runner.fake_scheduler import FakeScheduler


@pytest.fixture(autouse=True)
def histories(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a test opens; Python warns of databases that nobody closed."""
    opened: list[History] = []
    initialise = History.__init__

    def note(self: History, path: str | None = None) -> None:
        opened.append(self)
        initialise(self, path)

    monkeypatch.setattr(History, "__init__", note)
    yield
    for history in opened:
        history.close()


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
