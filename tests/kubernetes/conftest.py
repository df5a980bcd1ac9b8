from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.schedulers.kubernetes_scheduler.scheduler import KubernetesScheduler, create_scheduler
from tests.backends import need
from tests.kubernetes.stub import Stub

KUBECTL = """
import json, os, sys
with open(f"{os.path.dirname(sys.argv[0])}/notes", "w") as file:
    json.dump(sys.argv[1:], file)
command = sys.argv[sys.argv.index("--") + 1:]
os.execvp(command[0], command)
"""


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


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: Any) -> Path:
    """Put a kubectl into PATH that runs commands here, as the stub's pods do; returns where it notes them."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{KUBECTL}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program.with_name("notes")
