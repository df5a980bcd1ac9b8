from __future__ import annotations

import pytest

from tests import backends, ray_cluster


@pytest.fixture
def cluster(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> ray_cluster.RayCluster:
    """The Ray of this test run; schedulers find it by RAY_ADDRESS."""
    backends.need("ray")
    cluster = ray_cluster.shared_cluster(tmp_path_factory)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    return cluster


@pytest.fixture(autouse=True)
def no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address, token or mode of the user who runs the tests."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_JOB_HEADERS", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
