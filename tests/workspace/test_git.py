"""Inside of a checkout: what Git tracks or does not ignore."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.workspace.selection import select
from tests.workspace.conftest import chosen, files_of, git, take, write


@pytest.fixture
def checkout(project: Path) -> Path:
    git(project, "init", "-q")
    write(project, {".gitignore": "*.log\nbuild/\n", "a.py": "", "pkg/b.py": "", "x.log": "", "build/c": ""})
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    return project


def listed_by_git(root: Path) -> set[str]:
    output = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return {path for path in output.split("\0") if path and (root / path).is_file()}


def test_tracked_and_not_ignored(checkout: Path) -> None:
    write(checkout, {"new.py": "", "pkg/new.log": ""})
    (checkout / "a.py").unlink()
    git(checkout, "add", "-f", "x.log")
    assert chosen(checkout) == {".gitignore", "pkg/b.py", "new.py", "x.log"} == listed_by_git(checkout)
    report = select(str(checkout)).report
    assert sorted(report.left_out["git"]) == ["build", "pkg/new.log"]


def test_an_ignored_directory_counts_as_outside(checkout: Path) -> None:
    write(checkout, {"build/sub/x.log": ""})
    selection = select(str(checkout / "build"))
    assert files_of(selection) == {"c", "sub/x.log"}
    assert selection.report.notes == [f"{checkout}/build is ignored by Git, so all of its files are included"]
    assert chosen(checkout / "build/sub") == {"x.log"}


def test_submodules_and_nested_checkouts(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    write(other, {".gitignore": "*.tmp\n", "sub.py": ""})
    git(other, "add", "-A")
    git(other, "commit", "-qm", "other")
    git(checkout, "submodule", "add", "-q", str(other), "mod")
    write(checkout, {"mod/a.tmp": "", "mod/a.log": "", "mod/new.py": ""})
    git(checkout, "clone", "-q", str(other), "vendored")
    write(checkout, {"vendored/a.tmp": "", "vendored/deep/b.log": ""})
    own = {".gitignore", ".gitmodules", "a.py", "pkg/b.py"}
    nested = {"mod/.gitignore", "mod/sub.py", "mod/a.log", "mod/new.py"}
    nested |= {"vendored/.gitignore", "vendored/sub.py", "vendored/deep/b.log"}
    assert chosen(checkout) == own | nested
    assert select(str(checkout)).report.problems == []

    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(checkout), str(clone))
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "with a submodule")
    git(clone, "pull", "-q")
    selection = select(str(clone))
    assert ("mod", "is a Git submodule that is not checked out") in selection.report.problems
    assert "mod" in selection.directories


def test_links_are_links(checkout: Path) -> None:
    (checkout / "linked").symlink_to("pkg")
    git(checkout, "add", "-A")
    shutil.rmtree(checkout / "pkg")
    write(checkout, {"real/b.py": ""})
    (checkout / "pkg").symlink_to("real")
    selection = select(str(checkout))
    assert files_of(selection) == {".gitignore", "a.py", "real/b.py"}
    assert {path for path, _ in selection.links} == {"linked", "pkg"}


def test_special_files(checkout: Path) -> None:
    os.mkfifo(checkout / "pipe")
    report = take(checkout).report
    assert report.problems == [("pipe", "is a named pipe, which cannot be shipped")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_checkout_of_somebody_else(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = chosen(checkout)
    for path in [checkout, *checkout.rglob("*")]:
        os.lchown(path, 65534, 65534)
    assert chosen(checkout) == expected
    (note,) = select(str(checkout)).report.notes
    assert f"it belongs to another user: git config --global --add safe.directory {checkout}" in note
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "safe.directory")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(checkout))
    assert select(str(checkout)).report.notes == []


def test_a_hook_that_git_would_run_is_not_run(checkout: Path, tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git(checkout, "config", "core.fsmonitor", str(hook))
    assert "a.py" in chosen(checkout)
    assert not (tmp_path / "ran").exists()


def test_variables_of_a_hook(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = chosen(checkout)
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", "/")
    assert chosen(checkout) == expected
    assert select(str(checkout)).report.notes == []


def test_git_is_left_as_it_was(checkout: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (checkout / ".git").rglob("*")}
    chosen(checkout)
    assert {path: path.stat().st_mtime_ns for path in (checkout / ".git").rglob("*")} == before


# ---- without Git


@pytest.fixture
def no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_git")
def test_without_git_ignore_files_are_read(project: Path) -> None:
    write(project, {".git/info/exclude": "secret.txt\n", ".gitignore": "*.log\nbuild/\n"})
    write(
        project, {"a.py": "", "x.log": "", "build/c": "", "secret.txt": "", "p/.gitignore": "!keep.log\nz\n"}
    )
    write(project, {"p/keep.log": "", "p/z": "", "z": "", "p/other.log": ""})
    selection = select(str(project))
    assert files_of(selection) == {".gitignore", "a.py", "p/.gitignore", "p/keep.log", "z"}
    assert "git is not installed" in selection.report.notes[0]
    assert chosen(project / "p") == {".gitignore", "keep.log"}


def test_a_damaged_checkout_is_read_without_git(checkout: Path) -> None:
    expected = chosen(checkout)
    (checkout / ".git" / "HEAD").write_text("nonsense")
    selection = select(str(checkout))
    assert files_of(selection) == expected
    assert len(selection.report.notes) == 1


NAMES = ["a", "b", "ab", "abaab", "a.py", "b.log", ".c", "[", "x]", "-"]
TREE = [
    f"{d}{n}"
    for d in ("", "a/", "d/", "d/a/", "d/e/a/")
    for n in NAMES
    if f"{d}{n}" not in ("a", "d/a", "d/e/a")
]
PARTS = st.sampled_from(
    ["a", "b", "d", "e", "*", "?", "a*", "*.py", "**", "[ab]", "[!a]", ".c", "*b", "a\\b"]
)
# Sets, also those that are not closed or mean nothing.
PARTS |= st.sampled_from(["??", "[^a]", "[[]", "[]-x]", "[[]x]", "[a", "[[:alpha:]-]*", "[[:no:]]", "a\\"])


PARTS |= st.sampled_from(["*a*b", "*a*a*b*", "*?a*", "*[ab]*[ab]?*"])


@st.composite
def patterns(draw: st.DrawFn) -> str:
    text = "/".join(draw(st.lists(PARTS, min_size=1, max_size=4)))
    return "".join(
        [
            draw(st.sampled_from(["", "", "!"])),
            draw(st.sampled_from(["", "/"])),
            text,
            draw(st.sampled_from(["", "", "/"])),
        ]
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    git(root, "init", "-q")
    write(root, dict.fromkeys(TREE, ""))
    return root


@pytest.mark.slow
@settings(max_examples=60)
@given(lines=st.lists(patterns(), max_size=5), inner=st.lists(patterns(), max_size=2))
def test_the_rules_are_gits(tree: Path, lines: list[str], inner: list[str]) -> None:
    (tree / ".gitignore").write_text("\n".join(lines))
    (tree / "d" / ".gitignore").write_text("\n".join(inner))
    expected = listed_by_git(tree)
    assert chosen(tree) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/nonexistent")
        assert chosen(tree) == expected
