from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import backends, grid_engine


@pytest.fixture
def engine(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> grid_engine.GridEngine:
    """The Grid Engine of this test run; `qsub` and the others find it."""
    backends.need("sge")
    engine = grid_engine.shared_cluster(tmp_path_factory)
    for name, value in engine.environment.items():
        monkeypatch.setenv(name, value)
    return engine


@pytest.fixture
def own_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[grid_engine.GridEngine]:
    """A Grid Engine that this test may break."""
    backends.need("sge")
    with grid_engine.private_cluster() as engine:
        for name, value in engine.environment.items():
            monkeypatch.setenv(name, value)
        yield engine


@pytest.fixture
def shared(tmp_path: Path) -> str:
    """A folder that the execution hosts see by the same path."""
    return str(tmp_path / "shared")
