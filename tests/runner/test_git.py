from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shunter.git import GitProbe
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
    monkeypatch.setattr(GitProbe.__init__, "__defaults__", (60.0,))


def test_clean_and_dirty(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert GitProbe(str(repository)).facts() == (commit, False)
    (repository / "sub").mkdir()
    (repository / "a").write_text("b")
    assert GitProbe(str(repository / "sub")).facts() == (commit, True)
    git(repository, "checkout", "a")
    (repository / "new").write_text("untracked files travel with the job too")
    assert GitProbe(str(repository)).facts() == (commit, True)


def test_no_commit_yet(tmp_path: Path) -> None:
    git(tmp_path, "init")
    assert GitProbe(str(tmp_path)).facts() == (None, False)
    (tmp_path / "new").touch()
    assert GitProbe(str(tmp_path)).facts() == (None, True)


def test_many_changed_files_do_not_fill_a_pipe(repository: Path) -> None:
    for number in range(3000):
        (repository / f"a-file-with-quite-a-long-name-{number}").touch()
    assert GitProbe(str(repository), seconds=30).facts()[1] is True


def test_outside_a_repository_git_is_not_even_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    probe = GitProbe(str(tmp_path))
    assert probe.done()
    assert probe.facts() == (None, None)


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
    assert GitProbe(str(repository), seconds=0.2).facts() == (None, None)


def test_git_that_cannot_be_started_gives_no_facts(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert GitProbe(str(repository)).facts() == (None, None)


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


def test_a_slow_git_holds_up_neither_the_run_nor_its_facts(
    repository: Path, tmp_path: Path, runner: Runner, app: AppDef, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    fake_git(tmp_path, monkeypatch, f"read line < {gate}; echo '# branch.oid 0123456789'")
    monkeypatch.chdir(repository)
    handle = runner.run(app, "fake")  # git waits at the gate
    record = runner.history.find(handle)
    assert record is not None
    assert (record.phase, record.git_dirty) == ("submitted", None)
    gate.write_text("go\n")
    runner.close()
    record = runner.history.find(handle)
    assert record is not None
    assert (record.git_commit, record.git_dirty) == ("0123456789", False)


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
    assert GitProbe(str(repository)).facts()[0] == git(repository, "rev-parse", "HEAD")
    assert not (tmp_path / "canary").exists()
