"""A job that begins with the checkpoints of an earlier one, as the toolkit brings them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shunter_toolkit import earlier_checkpoints, job_document
from shunter_toolkit.errors import ConfigError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "old" / "checkpoints"
    (source / "step-2").mkdir(parents=True)
    (source / "step-1.pt").write_text("one")
    (source / "step-2" / "model.pt").write_text("two")
    (source / "step-3.pt.partial").write_text("thr")
    (source / "latest").symlink_to(source / "step-2")
    (source / "first").symlink_to("step-1.pt")
    return source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "new" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


COPIED = {"step-1.pt": "one", "step-2/model.pt": "two", "first": "one"}


def test_complete_files_are_copied_and_links_lead_into_the_copy(source: Path, folder: Path) -> None:
    earlier_checkpoints.bring({"uri": str(source), "files": 3}, str(folder))
    assert content(folder) == COPIED
    assert os.readlink(folder / "latest") == str(folder / "step-2")
    assert os.readlink(folder / "first") == "step-1.pt"
    (folder / "step-1.pt").write_text("changed")
    assert (source / "step-1.pt").read_text() == "one"


def test_an_interrupted_copy_is_made_again(source: Path, folder: Path) -> None:
    (folder / ".earlier").mkdir()
    (folder / ".earlier" / "step-1.pt").write_text("o")
    (folder / "step-2").mkdir()
    (folder / "step-2" / "model.pt").write_text("moved before the kill")
    earlier_checkpoints.bring({"uri": f"file://{source}"}, str(folder))
    assert content(folder) == COPIED
    assert not (folder / ".earlier").exists()


def test_a_job_with_checkpoints_goes_on_from_its_own(source: Path, folder: Path) -> None:
    (folder / "step-9.pt").write_text("nine")
    earlier_checkpoints.bring({"uri": str(source)}, str(folder))
    assert content(folder) == {"step-9.pt": "nine"}


def test_checkpoints_that_were_removed_are_an_error(source: Path, folder: Path, tmp_path: Path) -> None:
    for uri, files in ((source, 5), (tmp_path / "none", 1)):
        with pytest.raises(ConfigError, match="are not complete"):
            earlier_checkpoints.bring({"uri": str(uri), "files": files}, str(folder))
        assert content(folder) == {}
        assert os.listdir(folder) == []


def test_odd_files_are_left_out(source: Path, folder: Path) -> None:
    os.mkfifo(source / "fifo")
    earlier_checkpoints.bring({"uri": str(source)}, str(folder))
    assert content(folder) == COPIED


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown key 'url'"):
        job_document.Job({"checkpoints": {"earlier": {"0": {"url": "/x"}}}})
