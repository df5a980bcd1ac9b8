"""The end of a test run: what was skipped in a few lines, then the failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import backends

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
from tests import backends

backends.PROBES["moon"] = lambda: "too far"

@pytest.mark.parametrize("number", range(40))
def test_needs(number):
    backends.need("moon")

@pytest.mark.parametrize("number", range(30))
def test_elsewhere(number):
    pytest.skip("only\\non Mondays")

def test_fails():
    raise ValueError("no luck")
"""


@pytest.mark.slow
def test_many_skips_take_few_lines_and_failures_come_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHUNTER_REQUIRE_BACKENDS", raising=False)
    path = tmp_path / "test_some.py"
    path.write_text(TESTS)
    line = ["-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", f"{ROOT}/pyproject.toml"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *line, str(path)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    last = done.stdout.splitlines()[-45:]
    assert "   40 moon: too far" in last
    assert "   30 only on Mondays" in last
    assert last[-2].endswith("::test_fails - ValueError: no luck"), done.stdout
    assert "1 failed, 70 skipped" in last[-1]


def test_a_backend_that_nothing_was_skipped_for_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "PROBES", {"moon": lambda: "too far", "here": lambda: ""})
    backends.problem_with.cache_clear()
    assert backends.skips([]) == ["absent backends, and the tests skipped for each:", "    0 moon: too far"]
