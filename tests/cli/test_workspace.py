"""`shunter workspace show`, and the code that `shunter gc` removes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def project(cli: Cli) -> Path:
    project = cli.directory / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "train.py").write_text("print('hi')\n")
    (project / "big.bin").write_bytes(b"x" * 3000)
    (project / "a.log").write_text("")
    (project / ".env").write_text("A=1")
    (project / ".shunterignore").write_text("*.log\n")
    (project / "link").symlink_to("big.bin")
    return project


def test_show(cli: Cli, project: Path) -> None:
    os.mkfifo(project / "pipe")
    shown = cli("workspace", "show", "project")
    data = cli("workspace", "show", "project", "--json").json
    assert shown.out.splitlines() == [
        "workspace    project",
        "content      3 files, 2.9 KiB, 1 link, 1 directory",
        f"fingerprint  {data['fingerprint']}",
        "",
        "SIZE     LARGEST",
        "2.9 KiB  big.bin",
        "12 B     src/train.py",
        "6 B      .shunterignore",
        "",
        "left out",
        "  1 by .shunterignore: a.log",
    ]
    assert "warning: pipe is a named pipe, which cannot be shipped\n" in shown.err
    assert "looks like a secret: .env (to ship it, name it in .shunterignore: !/.env)" in shown.err
    assert data == {
        "projects": {"project": ""},
        "fingerprint": data["fingerprint"],
        "files": 3,
        "size": 3018,
        "links": 1,
        "directories": 1,
        "largest": [
            {"path": "big.bin", "size": 3000},
            {"path": "src/train.py", "size": 12},
            {"path": ".shunterignore", "size": 6},
        ],
        "left_out": {".shunterignore": ["a.log"]},
        "secrets": [".env"],
        "problems": [{"path": "pipe", "problem": "is a named pipe, which cannot be shipped"}],
        "notes": [],
    }


def test_show_several_and_the_current_directory(cli: Cli, project: Path) -> None:
    data = cli("workspace", "show", "project/src=app,project=data", "--json").json
    assert {row["path"] for row in data["largest"]} == {
        "app/train.py",
        "data/big.bin",
        "data/src/train.py",
        "data/.shunterignore",
    }
    assert data["left_out"] == {".shunterignore": ["data/a.log"]}
    assert cli("workspace", "--json").json["projects"] == {".": ""}


def test_only_ten_are_shown(cli: Cli, project: Path) -> None:
    for number in range(15):
        (project / f"f{number:02}").write_bytes(b"x" * (4000 + number))
        (project / f"l{number:02}").symlink_to("/nowhere")
    shown = cli("workspace", "show", "project")
    assert [line.split()[-1] for line in shown.out.splitlines()[5:15]] == [f"f{14 - k:02}" for k in range(10)]
    assert shown.err.count("points to /nowhere, which does not exist") == 10
    assert "and 5 more problems" in shown.err


def test_what_cannot_be_shown(cli: Cli, project: Path) -> None:
    assert "nowhere is not a directory" in cli("workspace", "show", "nowhere", code=3).err
    assert "invalid choice: 'list'" in cli("workspace", "list", code=2).err
    assert "Name a directory" in cli("workspace", "show", "", code=2).err
    shutil.rmtree(project / "src")
    (project / "big.bin").unlink()
    (project / ".shunterignore").write_text("*\n")
    assert "has no files: 4 left out by .shunterignore" in cli("workspace", "show", "project", code=3).err


@pytest.mark.slow
def test_gc_keeps_the_code_that_jobs_need(cli: Cli, project: Path, home: Path) -> None:
    cli.environ["DOCKER_HOST"] = "unix:///nonexistent"
    handles = []
    for text in ("one", "two"):
        (project / "src" / "train.py").write_text(text)
        run = cli("run", "--wait", "--workspace", "project", "utils.sh", "cat", "src/train.py")
        handles.append(run.out.strip())
    manifests = home / "state" / "workspaces" / "manifests"
    past = time.time() - 3 * 86400
    for path in manifests.iterdir():
        os.utime(path, (past, past))
    assert cli("gc", "--json").json["workspaces"] == []
    cli("delete", handles[0])
    (unneeded,) = cli("gc", "--older-than", "1d", "--json").json["workspaces"]
    shown = cli("gc", "--older-than", "1d")
    assert "the code of 1 workspaces; nothing is removed without --yes" in shown.err
    assert len(list(manifests.iterdir())) == 2
    assert "removed 0 leftovers and the code of 1 workspaces" in cli("gc", "--older-than", "1d", "--yes").err
    (left,) = manifests.iterdir()
    assert left.name.partition(".")[0] != unneeded
    assert "two" in cli("rerun", "--log", "--wait", handles[1]).err
    assert not [
        path for path in (home / "state" / "workspaces" / "views").iterdir() if path.name in handles[0]
    ]


def test_nothing_travels_from_an_empty_directory_unasked(cli: Cli, tmp_path: Path) -> None:
    """The first command of a new user, in a new directory."""
    empty = tmp_path / "empty"
    empty.mkdir()
    words = ["run", "--dryrun", "-s", "sagemaker_local", "utils.echo", "--image", "i:1"]
    cli.directory = empty
    assert "shunter_code" not in cli(*words).out
    refused = cli(
        "run",
        "--dryrun",
        "-s",
        "sagemaker_local",
        "train.script",
        "--script",
        "t.py",
        "--image",
        "i:1",
        code=3,
    )
    assert "has no files" in refused.err
