"""Clusters that documents name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.stub import Stub


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A cluster whose pods are processes of this machine."""
    with Stub() as stub:
        stub.extra["/api/v1/namespaces/default"] = {"metadata": {"name": "default"}}
        monkeypatch.setenv("KUBECONFIG", stub.kubeconfig(tmp_path / "kubeconfig"))
        yield
