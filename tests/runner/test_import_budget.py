"""What the fast paths may import: counted, not timed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "argparse",
    "asyncio",
    "concurrent.futures",
    "configparser",
    "dataclasses",
    "importlib.metadata",
    "inspect",
    "logging",
    "pathlib",
    "shutil",
    "sqlite3",
    "subprocess",
    "tempfile",
    "tomllib",
    "shunter.runner.config",
    "shunter.specs.app",
    "shunter.specs.options",
    "urllib.parse",
}

STATUS = """
from shunter.runner import get_runner
with get_runner() as runner:
    handle = runner.resolve_handle("local_cwd://shunter/x-bcdfghjkmn")
    assert runner.status(handle) is None
"""
REPORT = "import sys; found = sorted(sys.modules); import json; print(json.dumps(found))"


def modules(program: str) -> set[str]:
    # -S: site-packages may hold .pth files that import what they like
    path = f"import sys; sys.path[:0] = {sys.path!r}\n"
    result = subprocess.run(
        [sys.executable, "-S", "-c", f"{path}{program}\n{REPORT}"], capture_output=True, text=True, check=True
    )
    return set(json.loads(result.stdout))


def test_status_of_a_local_handle_imports_little() -> None:
    assert not modules(STATUS) & HEAVY


def test_listing_the_history_needs_sqlite_alone() -> None:
    program = """
import os
from shunter.runner.history import History
from shunter.paths import history_path
history = History()
key = history.add_intent(scheduler="local_cwd", session="s", name="n", cfg={}, app={}, cwd="/", argv=[],
                         user="u", host="h", submitter="")
history.submitted(key, "local_cwd://s/x", "x")
from shunter.runner import get_runner
with get_runner() as runner:
    assert len(runner.jobs()) == 1
"""
    assert modules(program) & HEAVY == {"sqlite3"}


@pytest.mark.parametrize("module", ["shunter.runner", "shunter.runner.api", "shunter.redaction"])
def test_importing_is_cheap(module: str) -> None:
    assert not modules(f"import {module}") & HEAVY


def test_a_supervisor_starts_without_json_and_regular_expressions() -> None:
    program = "import shunter.schedulers.exec.process.supervisor, shunter.schedulers.exec.process.guard"
    found = modules(program)
    assert not found & (HEAVY | {"argparse", "copy", "json", "re", "threading", "typing"})
    assert len([name for name in found if name.startswith("shunter")]) <= 30
