"""The public API of TorchX, as it is recorded, against what is served."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.backends import torchx_python

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import compat_report as report  # noqa: E402

VERSIONS = report.recorded()
#: Modules that need a package which is not installed here.
OPTIONAL = {"torchx.notebook": "IPython", "torchx.tracker.mlflow": "mlflow"}


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, dict[str, str]]]:
    return {name: report.compared(theirs, report.served(theirs)) for name, theirs in VERSIONS.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_absent(version: str, results: dict[str, dict[str, dict[str, str]]]) -> None:
    assert results[version]["absent"] == {}
    assert len(results[version]["equal"]) > 100


def test_each_name_that_differs_has_its_reason(results: dict[str, dict[str, dict[str, str]]]) -> None:
    differing = {name for result in results.values() for name in result["differing"]}
    assert [name for name in sorted(differing) if not report.reason(name)] == []
    table = report.DOCUMENT.read_text().partition(report.BEGIN)[2].partition(report.END)[0]
    rows = re.findall(r"^\| (`.+`) \|", table, re.MULTILINE)
    listed = set(re.findall(r"`([\w.]+)`", " ".join(row.partition(" | ")[0] for row in rows)))
    assert listed == {name.removeprefix("torchx.") for name in differing}, "run `make compat-report`"


def test_the_comparison_finds_what_differs() -> None:
    value = {
        "kind": "function",
        "parameters": [["a", "POSITIONAL_OR_KEYWORD", None], ["b", "KEYWORD_ONLY", "1"]],
    }
    assert report.differences(value, value) == []
    fewer = {**value, "parameters": value["parameters"][:1]}
    assert report.differences(value, fewer) == ["b is missing"]
    other = {**value, "parameters": [*value["parameters"][:1], ["b", "KEYWORD_ONLY", "2"]]}
    assert report.differences(value, other) == ["b is 2 by default, there 1"]
    more = {**value, "parameters": [*value["parameters"], ["c", "KEYWORD_ONLY", None]]}
    assert report.differences(value, more) == ["c has to be given too"]


@pytest.mark.slow
def test_the_installed_torchx_is_the_recorded_one() -> None:
    installed = report.described(os.path.relpath(torchx_python()))  # as the Makefile names it
    recorded = VERSIONS["0.7.0"]
    assert {module: set(names) - {""} for module, names in installed.items()} == {
        module: set(names) - {""} for module, names in recorded.items()
    }
