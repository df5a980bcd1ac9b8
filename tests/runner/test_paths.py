"""Where things are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shunter import paths


@pytest.mark.parametrize(("value", "expected"), [("/x", "/x/shunter"), ("x", ""), ("", ""), ("./x", "")])
def test_relative_xdg_directories_are_ignored(
    monkeypatch: pytest.MonkeyPatch, home: Path, value: str, expected: str
) -> None:
    monkeypatch.delenv("SHUNTER_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", value)
    monkeypatch.setenv("XDG_CONFIG_HOME", value)
    user = Path("~").expanduser()
    assert paths.state_dir() == (expected or str(user / ".local/state/shunter"))
    assert paths.config_dir() == (expected or str(user / ".config/shunter"))
    assert paths.xdg("XDG_RUNTIME_DIR", {"XDG_RUNTIME_DIR": value}) == expected.removesuffix("/shunter")


def test_a_tree_is_removed_from_which_others_remove_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (tree / name).touch()
    unlink, vanished = os.unlink, list[str]()

    def vanishes(path: str, **more: Any) -> None:
        unlink(path, **more)
        if len(vanished) < 2:
            vanished.append(path)
            raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "unlink", vanishes)
    paths.remove_tree(str(tree))
    assert vanished
    assert not tree.exists()
    paths.remove_tree(str(tree))
