from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.schedulers.kubernetes_scheduler.scheduler import KubernetesScheduler, create_scheduler
from tests.backends import need
from tests.kubernetes.stub import Stub


@pytest.fixture
def stub() -> Iterator[Stub]:
    need("lightkube")
    with Stub() as server:
        yield server


@pytest.fixture
def scheduler(stub: Stub, tmp_path: Path, monkeypatch: Any) -> Iterator[KubernetesScheduler]:
    monkeypatch.setenv("KUBECONFIG", stub.kubeconfig(tmp_path / "kubeconfig"))
    with closing(create_scheduler("test")) as made:
        yield made
