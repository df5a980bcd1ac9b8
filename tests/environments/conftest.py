from __future__ import annotations

import os
import sys

import pytest

from tests import backends

#: uv of the tests' own environment; the job's PATH does not have it.
UV = os.path.join(os.path.dirname(sys.executable), "uv")


@pytest.fixture
def packages(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package index; packages that were had once come from a cache that the tests share."""
    backends.need("packages")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "uv-cache"))
