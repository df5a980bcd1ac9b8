"""What of a directory is copied for the points of a sweep, and what is linked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shunter.schedulers.supervisor import own_directory
from shunter.schedulers.supervisor.own_directory import freeze, make_own, names_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "home" / "project"
    for folder in ("code", ".git", "env", "many", "empty", "state"):
        (project / folder).mkdir(parents=True)
    (project / "env/pyvenv.cfg").touch()
    (project / "code/a.py").write_text("a")
    (project / "code/latest").symlink_to("a.py")
    for number in range(40):
        (project / f"many/{number}").touch()
    (project / "large").write_bytes(b"l" * 2000)
    os.mkfifo(project / "fifo")
    (tmp_path / "home" / "data").write_text("data")
    return project


def test_what_is_copied(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_directory, "LARGEST_FILE", 1000)
    monkeypatch.setattr(own_directory, "MOST_ENTRIES", 30)
    target = project / "state/views/job"
    freeze(str(project), str(target))
    linked = {path.name for path in target.iterdir() if path.is_symlink()}
    assert linked == {".git", "env", "many", "large", "fifo", "state"}
    assert (target / "large").readlink() == project / "large"
    assert (target / "code/latest").read_text() == "a"
    (target / "code/a.py").write_text("b")
    (target / "empty/new").touch()
    assert (project / "code/a.py").read_text() == "a"
    assert list((project / "empty").iterdir()) == []


def test_no_more_is_copied_than_there_is_room_for(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_directory, "LARGEST_COPY", 100)
    freeze(str(project), str(project.parent / "copy"))
    assert (project.parent / "copy/large").is_symlink()
    assert not (project.parent / "copy/code/a.py").is_symlink()


def test_neighbours_are_seen_and_files_of_an_earlier_attempt_stay(project: Path, tmp_path: Path) -> None:
    template = tmp_path / "template"
    freeze(str(project), str(template))
    own = tmp_path.joinpath("points", *names_of(str(project)))
    make_own(str(template), str(project), str(own))
    assert (own / "../data").read_text() == "data"
    assert (own / "../../home/data").read_text() == "data"
    assert (own / "../../template").is_dir()
    (own / "checkpoint").touch()
    make_own(str(template), str(project), str(own))
    assert (own / "checkpoint").exists()
