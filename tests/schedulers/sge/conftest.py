from __future__ import annotations

from pathlib import Path

import pytest

from tests import backends, grid_engine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> grid_engine.GridEngine:
    """The Grid Engine of this test run; `qsub` and the others find it."""
    backends.need("sge")
    engine = grid_engine.shared()
    for name, value in engine.environment.items():
        monkeypatch.setenv(name, value)
    return engine


@pytest.fixture
def shared(tmp_path: Path) -> str:
    """A folder that the execution hosts see by the same path."""
    return str(tmp_path / "shared")
