"""The tracker of files: what it writes, reads, and takes from a configuration."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from shunter._toolkit.errors import ConfigError
from shunter._toolkit.tracking.fsspec_tracker import read_config
from shunter.tracker.api import TrackerSource
from shunter.tracker.backend.fsspec import FsspecTracker, create
from shunter.tracker.results import FsspecResultTracker

RUN = "local_cwd://torchx/app-1"
# What TorchX 0.7.0 names the directory of that run.
DIRECTORY = "NRXWGYLML5RXOZB2F4XXI33SMNUHQL3BOBYC2MI="


@pytest.fixture
def tracker(tmp_path: Path) -> FsspecTracker:
    return create(str(tmp_path))


def contents(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in sorted(os.listdir(folder))]


def test_the_files_are_those_of_torchx(tracker: FsspecTracker, tmp_path: Path) -> None:
    tracker.add_metadata(RUN, k1="v1", n=1, none=None)
    tracker.add_metadata(RUN, k1="v2")
    tracker.add_artifact(RUN, "model", "/tmp/m", {"epoch": 1})
    tracker.add_source(RUN, "local_cwd://torchx/app-0")
    place = tmp_path / DIRECTORY
    assert contents(place / "metadata") == [
        '{"metadata": {"k1": "v1", "n": 1, "none": null}}',
        '{"metadata": {"k1": "v2"}}',
    ]
    assert contents(place / "artifacts") == ['{"name": "model", "path": "/tmp/m", "metadata": {"epoch": 1}}']
    assert os.listdir(place / "sources") == ["NRXWGYLML5RXOZB2F4XXI33SMNUHQL3BOBYC2MA="]
    assert contents(place / "sources") == ["\n"]


def test_the_latest_wins(tracker: FsspecTracker) -> None:
    for number in range(20):
        tracker.add_metadata(RUN, step=number)
        tracker.add_artifact(RUN, "model", f"/m{number}")
    assert tracker.metadata(RUN) == {"step": 19}
    assert {name: found.path for name, found in tracker.artifacts(RUN).items()} == {"model": "/m19"}


def test_a_source_and_its_artifacts_are_all_kept(tracker: FsspecTracker) -> None:
    for name in (None, "model", "model", "data"):
        tracker.add_source(RUN, "a", name)
    assert list(tracker.sources(RUN)) == [TrackerSource("a", name) for name in (None, "model", "data")]
    assert list(tracker.sources(RUN, "data")) == [TrackerSource("a", "data")]
    assert list(tracker.sources(RUN, "nothing")) == []


def test_runs_are_found_by_what_they_build_on(tracker: FsspecTracker, tmp_path: Path) -> None:
    tracker.add_metadata("r2", a=1)
    tracker.add_source(RUN, "parent")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "lost+found").mkdir()
    assert sorted(tracker.run_ids()) == [RUN, "r2"]
    assert tracker.run_ids(parent_run_id="parent") == [RUN]
    assert list(tracker.run_ids(parent_run_id="other")) == []


def test_unknown_runs_have_nothing(tmp_path: Path) -> None:
    tracker = create((tmp_path / "not made").as_uri())
    assert (tracker.metadata("x"), tracker.artifacts("x")) == ({}, {})
    assert (list(tracker.sources("x")), list(tracker.run_ids())) == ([], [])


# ---- configuration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# c\nprotocol=file\n\nroot_path=/r\n", {"protocol": "file", "root_path": "/r"}),
        ("a.b.c=1\na.d=x=y\nbad\n k = v \n", {"a": {"b": {"c": "1"}, "d": "x=y"}, "k": "v"}),
    ],
)
def test_files_of_configuration(text: str, expected: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "c").write_text(text)
    assert read_config(str(tmp_path / "c")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("root_path=/r\n", "has no protocol"),
        ("protocol=file\n", "has no root_path"),
        ("a=1\na.b=2\n", "'a' is a value"),
        (None, "Cannot read the configuration"),
    ],
)
def test_mistakes(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "c").write_text(text)
    with pytest.raises(ConfigError, match=message):
        create(str(tmp_path / "c"))


def test_other_stores_need_fsspec_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(ConfigError, match=r"fsspec\[s3\]"):
        create("s3://bucket/runs")


# ---- results of trials


def test_results_of_trials(tmp_path: Path) -> None:
    tracker = FsspecResultTracker(f"{tmp_path}/a/b")
    assert tracker["absent"] == {}
    tracker[1] = {"loss": 0.5}
    tracker.put("x/y", note="good")
    assert (tracker[1], tracker.get("x/y")) == ({"loss": 0.5}, {"note": "good"})
    assert json.loads((tmp_path / "a/b/1").read_text()) == {"loss": 0.5}
