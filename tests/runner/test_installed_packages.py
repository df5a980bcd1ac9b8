"""What is installed where a job is submitted, and what `why` says of it when the job lacks a package."""

from __future__ import annotations

import pytest

from shunter.runner import get_runner, installed_packages
from shunter.why.explanation import explain


@pytest.fixture
def ghost(tmp_path, monkeypatch):
    """An environment, active in the shell, with a package that no job's Python has."""
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    for name in ("ghostlib", "ghostlib-2.1.dist-info", "yaml_of_ghosts"):
        (packages / name).mkdir(parents=True)
    (packages / "single_ghost.py").write_text("")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))


def test_why_names_the_package_that_is_only_where_the_job_was_submitted(ghost, tmp_path, monkeypatch, home):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.py").write_text("import ghostlib.parts\n")
    with get_runner() as runner:
        handle = runner.run_component("train.script", ["--script", "s.py"], "local_cwd", {})
        failure = explain(runner, handle, runner.wait(handle)).failure
    assert failure.cause.name == "missing_module"
    assert "that has ghostlib 2.1." in failure.cause.advice
    assert "--environment requirements.txt" in failure.cause.advice


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ModuleNotFoundError: No module named 'yaml_of_ghosts'", "that has yaml_of_ghosts."),
        ("ModuleNotFoundError: No module named 'single_ghost'", "that has single_ghost."),
        ("/usr/bin/python: No module named ghostlib", "that has ghostlib 2.1."),
        ("ModuleNotFoundError: No module named 'ghost'", ""),
        ("ModuleNotFoundError: No module named '../../etc'", ""),
        ('  File "/usr/lib/python3.2/json/__init__.py", line 1', "and runs with Python 3.2."),
    ],
)
def test_what_differs_is_said_and_nothing_else(ghost, home, line, said):
    text = installed_packages.difference(installed_packages.recorded(), [line])
    assert text.endswith(said)
    assert bool(text) is bool(said)


def test_a_record_without_its_file_says_nothing(home):
    assert installed_packages.difference("3.11.2 ../../nothing", ["No module named 'x'"]) == ""
