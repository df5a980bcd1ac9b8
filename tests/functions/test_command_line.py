"""``shunter run module:function`` and ``shunter result``."""

from __future__ import annotations

import json

import pytest

from shunter.cli import main

MODULE = '''
import enum
from pathlib import Path

class Kind(enum.Enum):
    sgd = 1
    adam = 2

def train(lr: float, kind: Kind = Kind.sgd, epochs=2, out: Path = Path("x"), *more: int) -> object:
    """Train a model."""
    assert isinstance(kind, Kind) and isinstance(out, Path) and isinstance(epochs, int)
    return {"loss": lr * epochs, "kind": kind.name, "out": out.name, "more": more}

def fail(code: int):
    raise LookupError(code)

def untyped(x):
    return x
'''


@pytest.fixture(autouse=True)
def project(project):
    (project / "lesson.py").write_text(MODULE)


@pytest.mark.parametrize("name", ["lesson:train", "lesson.py:train"])
def test_a_function_runs_by_its_signature_and_its_result_is_printed(name, capfd):
    assert main(["run", "--name", "trial", name, "--lr", "0.5", "--kind", "adam", "3", "4"]) == 0
    assert capfd.readouterr().out.startswith("local_cwd://shunter/trial-")
    assert main(["result"]) == 0
    value = {"loss": 1.0, "kind": "adam", "out": "x", "more": [3, 4]}
    assert json.loads(capfd.readouterr().out) == value
    assert main(["result", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"value": value}


def test_an_exception_is_printed_with_its_traceback_in_the_job(capfd):
    assert main(["run", "lesson:fail", "--code", "3"]) == 1
    capfd.readouterr()
    assert main(["result"]) == 1
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "lesson.py" in captured.err
    assert captured.err.endswith("LookupError: 3\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lesson:train", "--lr", "fast"], "'fast' is not a number"),
        (["lesson:untyped", "--x", "1"], "'x' has no type annotation"),
        (["lesson:trian"], "there is no function 'trian'"),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_submitted(words, message, capfd):
    assert main(["run", *words]) in (2, 3)
    assert message in capfd.readouterr().err
    assert main(["list", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == []


def test_a_job_without_a_call_has_no_result(capfd):
    assert main(["run", "utils.echo"]) == 0
    assert main(["result"]) == 3
    assert "calls no function, so it has no result" in capfd.readouterr().err


def test_a_module_that_submits_when_it_is_imported_does_not_submit_itself(tmp_path, monkeypatch, capfd):
    submits = """
import pathlib, shunter
tries = pathlib.Path("tries")
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")

def double(x: int) -> int:
    return 2 * x

if len(tries.read_text()) < 4:  # this test ends, whatever it finds
    with shunter.Executor("local_cwd") as executor:
        executor.submit(double, 1).result()
"""
    (tmp_path / "project" / "loop.py").write_text(submits)
    assert main(["run", "loop:double", "--x", "1"]) == 3
    assert "if __name__ == '__main__':" in capfd.readouterr().err
    assert (tmp_path / "project" / "tries").read_text() == "x"
