"""Content, links, several projects, and the memory of digests."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest

from shunter.errors import WorkspaceChangedError, WorkspaceError
from shunter.specs.workspace import Workspace
from shunter.workspace import file_digests
from shunter.workspace import snapshot as snapshots
from shunter.workspace.file_digests import Index
from shunter.workspace.manifest import Entry
from shunter.workspace.snapshot import Snapshot, snapshot
from tests.workspace.conftest import take, write


def sha(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def targets(taken: Snapshot) -> dict[str, str]:
    return {entry.path: entry.target for entry in taken.manifest.entries if entry.kind == "link"}


def test_entries(project: Path) -> None:
    write(project, {"run.sh": "echo", "data/": "", "empty": ""})
    (project / "run.sh").chmod(0o4751)
    (project / "data").chmod(0o2770)
    (project / "l").symlink_to("run.sh")
    taken = take(project)
    entries = taken.manifest.by_path
    assert entries["run.sh"] == Entry("run.sh", "file", 0o4751, 4, sha("echo"))
    assert entries["data"] == Entry("data", "dir", 0o2770)
    assert entries["l"] == Entry("l", "link", 0o777, target="run.sh")
    assert (taken.manifest.files, taken.manifest.size) == (2, 4)
    assert taken.source(entries["run.sh"]) == str(project / "run.sh")
    assert b"".join(taken.read(entries["run.sh"])) == b"echo"
    assert b"".join(taken.read(entries["empty"])) == b""


def test_links_into_the_workspace_become_relative(project: Path) -> None:
    write(project, {"a/b": "", "c/d": "", "e": ""})
    (project / "a" / "abs").symlink_to(project / "c" / "d")
    (project / "a" / "root").symlink_to(project)
    (project / "a" / "up").symlink_to("../c")
    (project / "out").symlink_to("/etc/hostname")
    (project / "beside").symlink_to("../project-beside")
    write(project.parent, {"project-beside": ""})
    taken = take(project)
    assert targets(taken) == {
        "a/abs": "../c/d",
        "a/root": "..",
        "a/up": "../c",
        "beside": "../project-beside",
        "out": "/etc/hostname",
    }
    assert taken.report.problems == [
        ("beside", "points to ../project-beside, outside of the workspace"),
        ("out", "points to /etc/hostname, outside of the workspace"),
    ]


def test_links_that_reach_the_workspace_by_a_detour(project: Path) -> None:
    write(project, {"a": "", "d/b": ""})
    (project / "d" / "out").symlink_to("../../project/a")
    (project.parent / "other").symlink_to(project)
    (project / "d" / "other").symlink_to(project.parent / "other" / "a")
    (project / "d" / "odd").symlink_to(".././d//b")
    taken = take(project)
    assert targets(taken) == {"d/out": "../a", "d/other": "../a", "d/odd": ".././d//b"}
    assert taken.report.problems == []


# ---- several projects


def test_several_projects(tmp_path: Path) -> None:
    write(tmp_path, {"app/main.py": "", "app/.shunterignore": "x", "app/x": "", "lib/x": "1", "lib/y/z": "2"})
    (tmp_path / "app" / "l").symlink_to(tmp_path / "lib" / "y")
    taken = take(tmp_path / "app", **{"vendor/lib": tmp_path / "lib"})
    paths = [entry.path for entry in taken.manifest.entries]
    assert paths == [
        ".shunterignore",
        "l",
        "main.py",
        "vendor",
        "vendor/lib",
        "vendor/lib/x",
        "vendor/lib/y",
        "vendor/lib/y/z",
    ]
    assert targets(taken) == {"l": "vendor/lib/y"}
    assert b"".join(taken.read(taken.manifest.by_path["vendor/lib/x"])) == b"1"


def test_links_between_projects(tmp_path: Path) -> None:
    write(tmp_path, {"app/main.py": "", "app/sub/x": "", "lib/y": ""})
    (tmp_path / "app" / "sub" / "lib").symlink_to("../../lib/y")
    (tmp_path / "lib" / "app").symlink_to("../app")
    taken = take(tmp_path / "app", **{"vendor/lib": tmp_path / "lib"})
    assert targets(taken) == {"sub/lib": "../vendor/lib/y", "vendor/lib/app": "../.."}
    assert taken.report.problems == []


def test_the_same_directory_twice(project: Path) -> None:
    write(project, {"a": ""})
    twice = Workspace({str(project): "", f"{project}/../project": "b"})
    with pytest.raises(WorkspaceError, match=r"has the directory .*/project twice"):
        snapshot(twice)


@pytest.mark.parametrize(
    ("files", "path"),
    [
        ({"a/pkg/x": "", "b/pkg/x": ""}, "pkg/x"),
        ({"a/pkg": "", "b/pkg/x": ""}, "pkg"),
        ({"a/pkg/x": "", "b/pkg": ""}, "pkg"),
    ],
)
def test_projects_that_have_the_same_path(tmp_path: Path, files: dict[str, str], path: str) -> None:
    write(tmp_path, files)
    with pytest.raises(WorkspaceError) as caught:
        take(tmp_path / "a", tmp_path / "b")
    assert f"the path {path}: " in caught.value.message
    assert f"{tmp_path}/a and {tmp_path}/b" in caught.value.message


# ---- nothing, and too much


def test_an_empty_workspace_says_why(project: Path) -> None:
    with pytest.raises(WorkspaceError, match="the directory is empty"):
        take(project)
    write(project, {".env": "", "a.log": "", ".shunterignore": "*\n"})
    with pytest.raises(WorkspaceError, match=r"has no files: 3 left out by \.shunterignore"):
        take(project)
    write(project, {".shunterignore": "*.log\n/.shunterignore"})
    with pytest.raises(WorkspaceError, match=r"2 left out by \.shunterignore, 1 left out as likely secrets"):
        take(project)


def test_an_implicit_workspace_must_be_a_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WorkspaceError, match="the root of the file system"):
        snapshot(Workspace({"/": ""}, implicit=True))
    monkeypatch.setenv("HOME", str(project))
    write(project, {"a": "1234"})
    with pytest.raises(WorkspaceError, match="is your home directory") as caught:
        snapshot(Workspace({str(project): ""}, implicit=True))
    assert "--workspace DIR" in caught.value.hint
    assert take(project).manifest.files == 1


@pytest.mark.parametrize("limit", ["MOST_BYTES", "MOST_FILES"])
def test_an_implicit_workspace_must_not_be_huge(
    project: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    write(project, {"a": "1234", "b": "12345"})
    implicit = Workspace({str(project): ""}, implicit=True)
    assert snapshot(implicit).manifest.files == 2
    monkeypatch.setattr(snapshots, limit, 1)
    with pytest.raises(WorkspaceError, match="has 2 files and"):
        snapshot(implicit)
    assert take(project).manifest.files == 2


# ---- frozen


@pytest.mark.parametrize("change", ["same size", "shorter", "gone", "a directory", "a link", "a pipe"])
def test_what_is_read_is_what_was_hashed(project: Path, change: str) -> None:
    write(project, {"a": "content", "b": "content"})
    taken = take(project)
    path = project / "a"
    texts = {"same size": "CONTENT", "shorter": "cont"}
    if change in texts:
        path.write_text(texts[change])
    else:
        path.unlink()
        if change == "a directory":
            path.mkdir()
        elif change == "a link":
            path.symlink_to("b")
        elif change == "a pipe":
            os.mkfifo(path)
    with pytest.raises(WorkspaceChangedError, match="/a was changed"):
        list(taken.read(taken.manifest.by_path["a"]))
    assert b"".join(taken.read(taken.manifest.by_path["b"])) == b"content"


def _read_for_ever(project: Path) -> None:
    while True:  # a reading that happens to come between two writes succeeds
        snapshot(Workspace({str(project): ""}))


def test_a_file_that_never_stands_still(project: Path) -> None:
    write(project, {"a": b"x" * (8 << 20)})
    stop = threading.Event()

    def scribble() -> None:
        with open(project / "a", "r+b", buffering=0) as file:
            while not stop.is_set():
                file.seek(0)
                file.write(os.urandom(8))

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        with pytest.raises(WorkspaceChangedError):
            _read_for_ever(project)
    finally:
        stop.set()
        writer.join()


def test_a_log_that_is_being_written_stops_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, {"log": "begun\n", "a": "1"})
    is_regular = stat.S_ISREG

    def write_on(mode: int) -> bool:  # which is asked while a file is being hashed
        with open(project / "log", "a") as log:
            log.write("more\n")
        return is_regular(mode)

    monkeypatch.setattr(stat, "S_ISREG", write_on)
    taken = take(project)
    monkeypatch.undo()
    (note,) = taken.report.warnings()
    assert note == "log is being written to: the job gets its current content"
    entry = taken.manifest.by_path["log"]
    before = (project / "log").read_bytes()
    with open(project / "log", "a") as log:
        log.write("and more\n")
    assert b"".join(taken.read(entry)) == before[: entry.size]
    (project / "log").write_text("rotated away" * 9)
    with pytest.raises(WorkspaceChangedError):
        list(taken.read(entry))


# ---- the memory of digests


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files whose content was read."""
    read: list[str] = []
    original = file_digests.hash_file

    def hash_file(path: str) -> object:
        read.append(os.path.basename(path))
        return original(path)

    monkeypatch.setattr(snapshots, "hash_file", hash_file)
    return read


def settle(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files count as untouched for long, though they have just been written."""
    monkeypatch.setattr(file_digests, "FINE_TICK_NS", -(10**12))
    monkeypatch.setattr(file_digests, "COARSE_TICK_NS", -(10**12))


def test_unchanged_files_are_not_read_again(
    project: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(project, monkeypatch)
    write(project, {"a": "1", "b": "2", "c": "3"})
    first = take(project).manifest
    assert sorted(hashed) == ["a", "b", "c"]
    hashed.clear()
    assert take(project).manifest == first
    assert hashed == []
    write(project, {"b": "X"})
    changed = take(project).manifest
    assert hashed == ["b"]
    assert changed.by_path["b"].digest == sha("X")


def test_a_change_that_keeps_size_and_time_is_seen(
    project: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(project, monkeypatch)
    write(project, {"a": "1"})
    info = (project / "a").stat()
    take(project)
    write(project, {"a": "2"})
    os.utime(project / "a", ns=(info.st_atime_ns, info.st_mtime_ns))
    assert take(project).manifest.by_path["a"].digest == sha("2")


def test_a_file_that_was_just_written_is_not_trusted(project: Path, hashed: list[str]) -> None:
    """It could be written again within the same tick of the clock, and look the same."""
    write(project, {"a": "1"})
    info = (project / "a").stat()
    memory = Index(str(project))
    memory.remember("a", info, sha("1"), began_ns=info.st_ctime_ns + file_digests.FINE_TICK_NS - 1)
    memory.save()
    assert Index(str(project)).digest("a", info) is None
    memory.remember("a", info, sha("1"), began_ns=info.st_ctime_ns + file_digests.COARSE_TICK_NS + 1)
    memory.save()
    assert Index(str(project)).digest("a", info) == sha("1")


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "gone", "directory"])
def test_a_damaged_memory_is_dropped(
    project: Path, home: Path, hashed: list[str], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    settle(project, monkeypatch)
    write(project, {"a": "1"})
    expected = take(project).manifest
    (memory,) = (home / "state" / "workspaces" / "index").iterdir()
    data = memory.read_bytes()
    memory.unlink()
    if damage == "directory":
        memory.mkdir()
    elif damage != "gone":
        memory.write_bytes({"cut": data[:-9], "empty": b"", "text": b"x\n[1]"}[damage])
    hashed.clear()
    assert take(project).manifest == expected
    assert hashed == ["a"]
