"""Files and repositories of others: what is left out, and that nothing of theirs runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shunter import git as git_module
from shunter.components.file_linter import SourceFile
from shunter.components.finder import get_component
from shunter.errors import ConfigError, WorkspaceError
from shunter.git import commit_of
from shunter.runner.config import load_config
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.specs import runopts
from shunter.system import ownership
from shunter.workspace.selection import select

STRANGER = 54321
GiveAway = Callable[[Path], None]


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> GiveAway:
    """Give a file to somebody else; where only root may do that, become somebody else."""
    for name in ("SUDO_UID", "GIT_CONFIG_COUNT"):
        monkeypatch.delenv(name, raising=False)

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.lchown(path, STRANGER, -1)
        else:
            monkeypatch.setattr(ownership, "_trusted_users", lambda environ: {0})

    return give


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "shared" / "project"
    directory.mkdir(parents=True)
    monkeypatch.chdir(directory)
    return directory


def queue() -> object:
    setting = load_config().scheduler("fake").get("queue")
    return setting and setting.value


@pytest.mark.parametrize(
    ("name", "above"),
    [
        ("shunter.toml", False),
        ("shunter.toml", True),
        ("pyproject.toml", False),
        ("pyproject.toml", True),
        (".torchxconfig", False),  # is read in the current directory alone
    ],
)
def test_a_strangers_configuration_is_left_out(
    project: Path, give_away: GiveAway, monkeypatch: pytest.MonkeyPatch, name: str, above: bool
) -> None:
    path = (project.parent if above else project) / name
    table = {"pyproject.toml": "[tool.shunter.scheduler.fake]", ".torchxconfig": "[fake]"}
    path.write_text(table.get(name, "[scheduler.fake]") + '\nqueue = "theirs"\n')
    assert "theirs" in str(queue())
    give_away(path)
    with pytest.warns(RuntimeWarning, match=f"{path} is ignored: it belongs to .*safe.directory"):
        assert queue() is None
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(path.parent))
    assert "theirs" in str(queue())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file of another user")
def test_root_under_sudo_uses_the_files_of_its_caller(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project / "shunter.toml"
    path.write_text('[scheduler.fake]\nqueue = "mine"\n')
    os.chown(path, STRANGER, -1)
    monkeypatch.setenv("SUDO_UID", str(STRANGER))
    assert queue() == "mine"


def test_a_strangers_link_is_theirs_whatever_it_points_to(
    project: Path, tmp_path: Path, give_away: GiveAway
) -> None:
    (tmp_path / "mine.toml").write_text('[scheduler.fake]\nqueue = "mine"\n')
    (project / "shunter.toml").symlink_to(tmp_path / "mine.toml")
    give_away(project / "shunter.toml")
    with pytest.warns(RuntimeWarning, match="belongs to"):
        assert queue() is None


def test_where_everybody_writes_only_the_current_directory_counts(project: Path) -> None:
    for path in (project, project.parent):
        path.chmod(0o777)
        (path / "shunter.toml").write_text(f'[scheduler.fake]\nqueue = "{path.name}"\n')
    assert queue() == "project"
    (project / "shunter.toml").unlink()
    with pytest.warns(RuntimeWarning, match=f"everybody can write to the directory {project.parent}"):
        assert queue() is None
    project.parent.chmod(0o1777)
    assert queue() == "shared"


@pytest.mark.parametrize("stop", ["repository", "home"])
def test_the_search_stops_at_the_repository_and_at_home(
    project: Path, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    (project.parent / "shunter.toml").write_text('[scheduler.fake]\nqueue = "above"\n')
    (project / "sub").mkdir()
    monkeypatch.chdir(project / "sub")
    assert queue() == "above"
    if stop == "repository":
        (project / ".git").mkdir()
    else:
        monkeypatch.setenv("HOME", str(project))
    assert queue() is None
    (project / "shunter.toml").write_text('[scheduler.fake]\nqueue = "top"\n')
    assert queue() == "top"


def test_a_strangers_ignore_file_brings_no_secret_along(project: Path, give_away: GiveAway) -> None:
    (project / ".env").write_text("KEY=1\n")
    (project / "data.bin").write_text("x")
    (project / ".shunterignore").write_text("*.bin\n!/.env\n")
    assert ".env" in [path for path, _ in select(str(project)).files]
    give_away(project / ".shunterignore")
    selection = select(str(project))
    assert {".env", "data.bin"}.isdisjoint(path for path, _ in selection.files)
    assert "do not count" in selection.report.notes[0]


# ---- repositories

CONFIG = """
[core]
    fsmonitor = {run}
    hooksPath = {hooks}
    sshCommand = {run}
    pager = {run}
    editor = {run}
    askPass = {run}
    gitProxy = {run}
    alternateRefsCommand = {run}
[filter "evil"]
    clean = {run}; cat
    smudge = {run}; cat
    required = true
[include]
    path = more
[diff]
    external = {run}
[diff "evil"]
    textconv = {run}
    command = {run}
[credential]
    helper = {run}
[gpg]
    program = {run}
[extensions]
    partialClone = origin
    worktreeConfig = true
[remote "origin"]
    url = ext::{run}
    promisor = true
    uploadpack = {run}
    vcs = evil
[status]
    submoduleSummary = true
[submodule]
    recurse = true
"""


def git(directory: Path, *words: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *who, *words], cwd=directory, check=True, capture_output=True)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A repository with a submodule, where all that can name a program does; and what these leave."""
    marker = tmp_path / "marker"
    program = tmp_path / "run"
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {marker}\n')
    program.chmod(0o755)
    inner, directory = tmp_path / "inner", tmp_path / "hostile"
    for place in (inner, directory):
        place.mkdir()
        git(place, "init", "--initial-branch=main")
        (place / "a.txt").write_text("a\n")
        (place / "b.bin").write_text("b\n")
        git(place, "add", ".")
        git(place, "commit", "-m", "one")
    git(directory, "submodule", "add", str(inner), "sub")
    git(directory, "commit", "-m", "two")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in (
        "post-index-change",
        "fsmonitor-watchman",
        "pre-auto-gc",
        "post-checkout",
        "reference-transaction",
    ):
        (hooks / hook).symlink_to(program)
    for store in (directory / ".git", directory / ".git/modules/sub"):
        with open(store / "config", "a", encoding="utf-8") as file:
            file.write(CONFIG.format(run=program, hooks=hooks))
        (store / "more").write_text(f'[filter "more"]\n    process = {program}\n    required = true\n')
        (store / "config.worktree").write_text(f'[filter "tree=x"]\n    clean = {program}; cat\n')
    for tree in (directory, directory / "sub"):
        (tree / ".gitattributes").write_text(
            "*.txt filter=evil diff=evil\n*.bin filter=more\n*.md filter=tree=x\n"
        )
        (tree / "a.txt").write_text("changed\n")
        (tree / "b.bin").write_text("changed\n")
        (tree / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(directory)
    return directory, marker


@pytest.mark.slow
def test_nothing_of_a_hostile_repository_runs(
    hostile: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, marker = hostile
    monkeypatch.setattr(git_module, "_CONFIG_SECONDS", 30.0)
    commit, dirty = commit_of(str(directory), seconds=30)
    assert (len(commit or ""), dirty) == (40, True)
    assert {"a.txt", "train.py"} <= {path for path, _ in select(str(directory)).files}
    words = ["run", "-s", "local_cwd", "--workspace", ".", "--wait", "utils.echo"]
    subprocess.run([sys.executable, "-m", "shunter", *words], check=True, capture_output=True)
    assert not marker.exists(), marker.read_text()
    subprocess.run(["git", "status"], cwd=directory, check=False, capture_output=True)
    assert marker.exists()  # what Git alone would have done


def test_a_pipe_in_place_of_git_configuration_does_not_hang(tmp_path: Path) -> None:
    git(tmp_path, "init")
    with open(tmp_path / ".git/config", "a", encoding="utf-8") as file:
        file.write("[include]\n    path = pipe\n")
    os.mkfifo(tmp_path / ".git/pipe")
    assert commit_of(str(tmp_path), seconds=0.1) == (None, None)


# ---- files that are none, or too much


def deep(opening: str, closing: str) -> str:
    return opening * 5000 + "1" + closing * 5000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shunter.toml", None),
        ("pyproject.toml", None),
        (".torchxconfig", None),
        ("shunter.toml", "a = " + deep("[", "]")),
        ("shunter.toml", "a = " + deep("{a=", "}")),
        ("shunter.toml", "[run." + ".".join("a" * 5000) + "]"),
        ("shunter.toml", "a." * 5000 + "b = 1"),
        ("shunter.toml", "a = " + "9" * 5000),
        ("shunter.toml", "#" * (16 << 20) + "\n"),
    ],
    ids=range(9),
)
def test_a_configuration_that_is_no_file_or_too_much_is_an_error(
    project: Path, name: str, text: str | None
) -> None:
    if text is None:
        os.mkfifo(project / name)
    else:
        (project / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        load_config()


@pytest.mark.parametrize("name", [".shunterignore", ".torchxignore", ".dockerignore", ".gitignore"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_an_ignore_file_that_is_no_file_is_an_error(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    if kind == "fifo":
        os.mkfifo(project / name)
    else:
        (project / name).symlink_to("/dev/zero")
    if name == ".gitignore":  # Git itself waits for a FIFO
        monkeypatch.setattr(git_module, "LISTING_SECONDS", 0.5)
        git(project, "init")
        if kind == "device":
            return  # which it does not read
    with pytest.raises(WorkspaceError, match=f"{name}: it is a FIFO, a socket or a device"):
        select(str(project))


@pytest.mark.parametrize("text", [None, deep("(", ")"), deep("-", ""), "x = " + deep("[", "]")], ids=range(4))
def test_a_component_file_that_is_no_file_or_too_deep_is_an_error(project: Path, text: str | None) -> None:
    path = project / "job.py"
    if text is None:
        os.mkfifo(path)
    else:
        path.write_text(text)
    with pytest.raises(ConfigError):
        get_component("job.py:fn")
    # the parser of Python 3.15 takes as many signs as there are
    assert SourceFile(str(path)).message or (sys.version_info >= (3, 15) and str(text).startswith("-"))


def test_options_that_are_nested_deeply_are_an_error() -> None:
    opts = runopts.from_dataclass(AWSSageMakerOpts)
    with pytest.raises(ConfigError, match="not JSON"):
        opts.cfg_from_json_repr(deep("[", "]") * 20)
    with pytest.raises(ConfigError, match="not JSON"):
        opts.cfg_from_str("instance_groups=" + deep("[", "]") * 20)
