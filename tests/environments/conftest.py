from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import backends

#: uv of the tests' own environment; the job's PATH does not have it.
UV = os.path.join(os.path.dirname(sys.executable), "uv")


@functools.cache
def index_problem() -> str:
    """Return why no package can be had from the index that uv is configured for; "" if one can."""
    with tempfile.TemporaryDirectory() as folder:
        command = [UV, "pip", "install", "--quiet", "--target", folder, "--no-deps", "six"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{UV} cannot install six: {done.stderr[-200:]}"


@pytest.fixture
def packages(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package index; packages that were had once come from a cache that the tests share."""
    backends.backend("packages", not index_problem(), index_problem())
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "uv-cache"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
