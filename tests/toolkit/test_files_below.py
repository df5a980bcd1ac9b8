from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from shunter_toolkit.store import files_below


def test_links_are_followed_and_circles_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    (data / "sub").mkdir(parents=True)
    elsewhere.mkdir()
    (data / "sub" / "f").write_text("1")
    (elsewhere / "g").write_text("2")
    (data / "self").symlink_to(".")
    (data / "sub" / "up").symlink_to("..")
    (data / "more").symlink_to(elsewhere)
    (data / "again").symlink_to(elsewhere)
    (data / "link").symlink_to("sub/f")
    (data / "nothing").symlink_to("nowhere")
    (data / "a").symlink_to("b"), (data / "b").symlink_to("a")
    os.mkfifo(data / "fifo")
    with socket.socket(socket.AF_UNIX) as unix:
        monkeypatch.chdir(data)
        unix.bind("socket")
    found = files_below(str(data))
    assert sorted(found) == ["again/g", "link", "more/g", "sub/f"]
    assert found["more/g"] == str(data / "more" / "g")


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files_below(str(tmp_path / "nowhere"))
