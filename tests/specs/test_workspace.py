from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.errors import UsageError
from shunter.specs import Workspace

NAMES = st.from_regex(r"[abcxyz_-]([abcxyz_. -]{0,6}[abcxyz_-])?", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "projects"),
    [
        ("", {}),
        ("  ", {}),
        (".", {".": ""}),
        ("/a/b c", {"/a/b c": ""}),
        ("app=.", {"app": ""}),
        ("app=., ../lib=vendor/lib", {"app": "", "../lib": "vendor/lib"}),
        ("a=x/../y", {"a": "y"}),
        ("{.: '', ../lib: lib}", {".": "", "../lib": "lib"}),
        ('{"a b": "c d"}', {"a b": "c d"}),
    ],
)
def test_reading(text: str, projects: dict[str, str]) -> None:
    assert Workspace.from_str(text).projects == projects


def test_nothing_is_false() -> None:
    assert not Workspace.from_str(None)
    assert Workspace.from_str(".")
    assert Workspace.from_str("@0123456789")
    assert Workspace.from_str("@01234567") == Workspace(frozen="01234567") != Workspace({"@01234567": ""})


@pytest.mark.parametrize(
    "text", ["a=b,c", "=b", "a=/etc", "a=..", "a=../x", "a=b,a=c", "{a}", "@abc", "@xyzxyzxyz"]
)
def test_what_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Workspace.from_str(text)
    assert caught.value.hint


def test_a_directory_of_that_name_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lr=0.1", "@0123456789"):
        (tmp_path / name).mkdir()
        assert Workspace.from_str(name).projects == {name: ""}


@given(st.dictionaries(NAMES, NAMES, min_size=1, max_size=4))
def test_text_and_back(projects: dict[str, str]) -> None:
    workspace = Workspace(projects)
    assert Workspace.from_str(str(workspace)) == workspace


def test_absolute_resolves_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert Workspace.from_str("link").absolute().projects == {os.path.realpath("real"): ""}
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Workspace.from_str("~/link").absolute().projects == {os.path.realpath("real"): ""}
