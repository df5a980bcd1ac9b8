from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shunter.git import commit_of
from shunter.runner import Runner
from shunter.specs import AppDef


def git(directory: Path, *args: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    result = subprocess.run(["git", *who, *args], cwd=directory, check=True, capture_output=True, text=True)
    return result.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("GIT_DIR", raising=False)
    directory = tmp_path / "repo"
    directory.mkdir()
    git(directory, "init")
    (directory / "a").write_text("a")
    git(directory, "add", "a")
    git(directory, "commit", "-m", "a")
    return directory


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git may take long on a busy machine."""
    monkeypatch.setattr(commit_of, "__defaults__", (60.0,))


def test_clean_and_dirty(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert commit_of(str(repository)) == (commit, False)
    (repository / "sub").mkdir()
    (repository / "a").write_text("b")
    assert commit_of(str(repository / "sub")) == (commit, True)
    git(repository, "checkout", "a")
    (repository / "new").write_text("untracked files travel with the job too")
    assert commit_of(str(repository)) == (commit, True)


def test_no_commit_yet(tmp_path: Path) -> None:
    git(tmp_path, "init")
    assert commit_of(str(tmp_path)) == (None, False)
    (tmp_path / "new").touch()
    assert commit_of(str(tmp_path)) == (None, True)


def test_outside_a_repository_git_is_not_even_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    assert commit_of(str(tmp_path)) == (None, None)


def fake_git(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (directory / "bin").mkdir()
    program = directory / "bin" / "git"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory / 'bin'}:{os.environ['PATH']}")


@pytest.mark.parametrize("script", ["exit 128", "exec sleep 1000", "kill -9 $$"])
def test_a_git_that_fails_or_hangs_gives_no_facts(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fake_git(tmp_path, monkeypatch, script)
    assert commit_of(str(repository), seconds=0.2) == (None, None)


def test_git_that_cannot_be_started_gives_no_facts(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(str(repository)) == (None, None)


def test_a_run_has_the_facts(
    repository: Path, runner: Runner, app: AppDef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    handle = runner.run(app, "fake")
    runner.close()
    record = runner.history.find(handle)
    assert record is not None
    assert (record.git_commit, record.git_dirty) == (git(repository, "rev-parse", "HEAD"), False)
    assert record.cwd == str(repository)


def test_a_filter_of_a_common_directory_is_not_run(repository: Path, tmp_path: Path) -> None:
    (repository / ".gitattributes").write_text("* filter=evil\n")
    git(repository, "add", ".")
    git(repository, "commit", "-m", "b")
    common = tmp_path / "common"
    (repository / ".git").rename(common)
    (repository / ".git").mkdir()
    for name in ("HEAD", "index", "config"):
        (repository / ".git" / name).write_bytes((common / name).read_bytes())
    (repository / ".git" / "commondir").write_text(str(common))
    git(repository, "config", "filter.evil.clean", f"touch {tmp_path}/canary; cat")
    assert "filter" not in (repository / ".git" / "config").read_text()
    os.utime(repository / "a", (1, 1))  # so that Git has to read it
    assert commit_of(str(repository))[0] == git(repository, "rev-parse", "HEAD")
    assert not (tmp_path / "canary").exists()
