"""The Python examples of the API pass strict type checking, as users' code does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import FILE, PYTHON, read_steps
from tests.docs.documents import ROOT


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["python.md", "functions.md"])
def test_examples_are_typed(name: str, tmp_path: Path) -> None:
    steps = [step for step in read_steps(ROOT / "docs" / name) if step.kind in (FILE, PYTHON)]
    for step in steps:
        (tmp_path / (step.name or f"example_{step.line}.py")).write_text(step.text)
    files = sorted(path.name for path in tmp_path.glob("*.py"))
    assert len(files) > 2
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            "--cache-dir",
            str(tmp_path / "cache"),
            *files,
        ],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.partition(":")[0] in files]
    assert lines == []
