"""Which files are chosen outside of Git, ignore files, things that are no files."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from shunter.errors import ConfigError, WorkspaceError
from shunter.workspace.selection import select
from tests.workspace.conftest import chosen, files_of, git, take, write


def test_caches_and_metadata_stay_at_home(project: Path) -> None:
    write(
        project,
        {"a.py": "", "__pycache__/a.pyc": "", "x/__pycache__/b.pyc": "", ".hg/store": "", ".svn/e": ""},
    )
    assert chosen(project) == {"a.py"}
    assert select(str(project)).report.left_out == {"default": ["__pycache__", "x/__pycache__"]}


def test_shunters_own_state_stays_at_home(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHUNTER_HOME", str(project / "mine"))
    write(project, {"a.py": "", "mine/state/history.db": "", "mine/other": ""})
    assert chosen(project) == {"a.py", "mine/other"}


def test_gitignore_syntax(project: Path) -> None:
    name = ".shunterignore"
    write(
        project, {"a.log": "", "keep.log": "", "x/b.log": "", "out/c.py": "", "x/out/d": "", "src/out.py": ""}
    )
    write(project, {name: "# comment\n\n*.log\n!keep.log\n/out/\n"})
    assert chosen(project) == {name, "keep.log", "x/out/d", "src/out.py"}
    assert sorted(select(str(project)).report.left_out[name]) == ["a.log", "out", "x/b.log"]


def test_torchxignore_starts_at_the_root_and_its_wildcards_cross_slashes(project: Path) -> None:
    write(
        project, {"a.log": "", "x/b.log": "", "keep.log": "", "x/keep.log": "", "data/f": "", "x/data/g": ""}
    )
    write(project, {".torchxignore": "  # indented\n  *.log\n\n  !keep.log\n  data/\n"})
    assert chosen(project) == {".torchxignore", "keep.log", "x/data/g"}
    left_out = select(str(project)).report.left_out[".torchxignore"]
    assert {"a.log", "data", "x/b.log", "x/keep.log"} <= set(left_out)


def test_a_pattern_brings_back_what_other_rules_leave_out(project: Path) -> None:
    git(project, "init", "-q")
    write(
        project, {"a.py": "", "build/lib/x.so": "", "build/junk": "", "model.bin": "", "b": "", ".env": "A=1"}
    )
    write(project, {".gitignore": "build/\n*.bin\n", ".dockerignore": "b\n"})
    write(project, {".shunterignore": "!build/lib/\n!*.bin\n!/b\n"})
    plain = {"a.py", ".gitignore", ".dockerignore", ".shunterignore"}
    selection = select(str(project))
    assert files_of(selection) == plain | {"build/lib/x.so", "model.bin", "b"}
    assert set(selection.directories) == {"build", "build/lib"}
    assert selection.report.secrets == [".env"]


def test_bringing_a_directory_back_names_no_secret(project: Path) -> None:
    write(
        project,
        {"conf/.env": "", "conf/a": "", "conf/__pycache__/x": "", ".shunterignore": "/conf\n!/conf/\n"},
    )
    assert chosen(project) == {".shunterignore", "conf/a"}
    write(project, {".shunterignore": "!/conf/.env\n"})
    assert chosen(project) == {".shunterignore", "conf/a", "conf/.env"}


def test_a_name_does_not_reach_into_directories_that_are_left_out(project: Path) -> None:
    git(project, "init", "-q")
    write(project, {".gitignore": ".venv\n", ".venv/lib/.env": "", ".env": "", ".shunterignore": "!.env\n"})
    assert chosen(project) == {".gitignore", ".env", ".shunterignore"}


def test_wildcards_alone_bring_back_only_what_their_own_file_left_out(project: Path) -> None:
    git(project, "init", "-q")
    write(project, {".gitignore": "out/\n", "out/a.py": "", "b.py": "", "x/c.py": "", "d.txt": ""})
    write(project, {".shunterignore": "*\n!*/\n!*.py\n"})
    assert chosen(project) == {"b.py", "x/c.py"}


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("!", "it names nothing"),
        ("[a", "its [ is not closed"),
        ("x[[:digits:]]", "there is no class [:digits:]"),
        ("a\\", "it ends in a backslash"),
    ],
)
def test_a_pattern_that_matches_nothing_is_reported(project: Path, pattern: str, reason: str) -> None:
    write(project, {"a": "", "[a": "", ".shunterignore": f"ok\n{pattern}\n"})
    selection = select(str(project))
    assert files_of(selection) == {"a", "[a", ".shunterignore"}
    (note,) = selection.report.notes
    assert note.startswith(f"{project}/.shunterignore:2: the pattern {pattern!r} matches nothing")
    assert note.endswith(reason)


def test_an_ignore_file_that_cannot_be_read(project: Path) -> None:
    write(project, {"a": "", ".dockerignore/": ""})
    with pytest.raises(WorkspaceError, match=r"cannot read .*\.dockerignore: Is a directory"):
        select(str(project))


def test_things_that_are_no_files(project: Path) -> None:
    write(project, {"a": ""})
    os.mkfifo(project / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(project / "sock"))
    listening.close()
    (project / "gone").symlink_to("nowhere")
    (project / "loop").symlink_to("loop")
    taken = take(project)
    assert [entry.path for entry in taken.manifest.entries] == ["a", "gone", "loop"]
    assert taken.report.problems == [
        ("gone", "points to nowhere, which does not exist"),
        ("loop", "points to loop, which does not exist"),
        ("pipe", "is a named pipe, which cannot be shipped"),
        ("sock", "is a socket, which cannot be shipped"),
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_devices(project: Path) -> None:
    write(project, {"a": ""})
    try:
        os.mknod(project / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("devices cannot be made here")
    assert take(project).report.problems == [("null", "is a device, which cannot be shipped")]


def without_roots_powers() -> list[str]:
    """Return words before a command, so that permissions hold for it even if root runs it."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may read everything here, and setpriv is not installed")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def test_what_nobody_may_read(project: Path) -> None:
    write(project, {"a": "1", "locked": "2", "shut/b": "3"})
    (project / "locked").chmod(0)
    (project / "shut").chmod(0)
    script = (
        "import sys\n"
        "from shunter.specs.workspace import Workspace\n"
        "from shunter.workspace.snapshot import snapshot\n"
        "taken = snapshot(Workspace({sys.argv[1]: ''}))\n"
        "print([e.path for e in taken.manifest.entries], taken.report.problems)\n"
    )
    command = [*without_roots_powers(), sys.executable, "-c", script, str(project)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        (project / "shut").chmod(0o755)
    assert done.stdout == (
        "['a', 'shut'] [('locked', 'cannot be read: Permission denied'),"
        " ('shut', 'cannot be read: Permission denied')]\n"
    ), done.stderr


def test_a_real_virtual_environment(project: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(project / ".venv")], check=True)
    write(project, {"a.py": ""})
    taken = take(project)
    entries = taken.manifest.by_path
    assert {"a.py", ".venv/pyvenv.cfg", ".venv/bin/activate"} <= entries.keys()
    if (project / ".venv/lib64").is_symlink():
        assert entries[".venv/lib64"].target == "lib"
    assert any(path.startswith(".venv/bin/python") for path, _ in taken.report.problems)


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_a_workspace_that_is_no_directory(project: Path, name: str) -> None:
    write(project, {"file": ""})
    with pytest.raises(ConfigError, match=f"{name} is not a directory"):
        select(str(project / name))
