"""The run of a process, and how its trackers are found."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter._toolkit.errors import ConfigError
from shunter.tracker import AppRun, app_run_from_env
from shunter.tracker.api import TrackerBase, TrackerSource, build_trackers, tracker_config_env_var_name
from shunter.tracker.backend.fsspec import FsspecTracker

RUN = "local_cwd://torchx/app-1"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("TORCHX_")]:
        monkeypatch.delenv(name)
    AppRun.run_from_env.cache_clear()
    yield
    AppRun.run_from_env.cache_clear()


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TORCHX_JOB_ID", RUN)
    monkeypatch.setenv("TORCHX_TRACKERS", "fsspec")
    monkeypatch.setenv("TORCHX_TRACKER_FSSPEC_CONFIG", str(tmp_path))
    return tmp_path


def test_outside_of_jobs_nothing_is_noted() -> None:
    run = app_run_from_env()
    assert (run.id, run.job_id(), list(run.backends)) == ("<UNDEFINED>", "<UNDEFINED>", [])
    run.add_metadata(loss=1)
    assert (run.sources(), list(run.children())) == ([], [])


def test_in_a_job_everything_goes_to_every_tracker(in_job: Path) -> None:
    run = app_run_from_env()
    assert app_run_from_env() is run
    assert run.id == RUN
    run.add_metadata(loss=0.5)
    run.add_artifact("model", "/m", {"epoch": 1})
    run.add_source("earlier", "data")
    (tracker,) = run.backends
    assert tracker.metadata(RUN) == {"loss": 0.5}
    assert tracker.artifacts(RUN)["model"].metadata == {"epoch": 1}
    assert [(s.parent.id, s.artifact_name) for s in run.sources()] == [("earlier", "data")]
    assert [child.id for child in AppRun("earlier", [tracker]).children()] == [RUN]


def test_the_parent_run_is_a_source(in_job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_PARENT_RUN_ID", "sweep-1")
    (source,) = app_run_from_env().sources()
    assert (source.parent.id, source.artifact_name) == ("sweep-1", None)


PLUGIN = """
from shunter.tracker.api import TrackerBase
class Memory(TrackerBase):
    def __init__(self, config): self.config, self.noted = config, []
    def add_artifact(self, run_id, name, path, metadata=None): pass
    def artifacts(self, run_id): return {}
    def add_metadata(self, run_id, **kwargs): self.noted.append((run_id, kwargs))
    def metadata(self, run_id): return {}
    def add_source(self, run_id, source_id, artifact_name=None): pass
    def sources(self, run_id, artifact_name=None): return []
    def run_ids(self, **kwargs): return ["child"] if kwargs else ["all"]
"""


@pytest.mark.parametrize("name", ["our_tracker:Memory", "ours", "theirs"])
def test_trackers_of_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "our_tracker.py").write_text(PLUGIN)
    info = tmp_path / "our_tracker-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: our-tracker\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[torchx.tracker]\ntheirs = our_tracker:Memory\n[shunter.tracker]\nours = our_tracker:Memory\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "our_tracker", raising=False)
    monkeypatch.setenv("TORCHX_JOB_ID", RUN)
    monkeypatch.setenv("TORCHX_TRACKERS", f"{name}, nothing")
    plain = "TORCHX_TRACKER_" + name.upper().replace(":", "_") + "_CONFIG"
    monkeypatch.setenv(plain, "here")
    with caplog.at_level(logging.WARNING):
        run = app_run_from_env()
    assert "there is no tracker 'nothing'" in caplog.text
    run.add_metadata(x=1)
    (tracker,) = run.backends
    assert (tracker.config, tracker.noted) == ("here", [(RUN, {"x": 1})])  # type: ignore[attr-defined]
    assert tracker.lineage("r").descendants == ["child"]


def test_a_tracker_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(ConfigError, match="has no configuration"):
        build_trackers({"fsspec": None})
    with pytest.raises(ConfigError, match="function_that_is_not_there"):
        build_trackers({"json:function_that_is_not_there": None})


def test_names_of_variables() -> None:
    assert tracker_config_env_var_name("fsspec") == "TORCHX_TRACKER_FSSPEC_CONFIG"
    from shunter._toolkit.tracking.runs import plain_variable
    from shunter.runner.preparation import tracker_variable

    for name in ("fsspec", "a.b:c", "my-tracker", "größe"):
        assert plain_variable(name) == tracker_variable(name)


def test_lineage(tmp_path: Path) -> None:
    tracker: TrackerBase = FsspecTracker(build_file_system(), str(tmp_path))
    tracker.add_source("b", "a", "model")
    tracker.add_source("c", "b")
    found = tracker.lineage("b")
    assert (found.run_id, found.sources, found.descendants) == ("b", [TrackerSource("a", "model")], ["c"])


def build_file_system() -> object:
    from shunter._toolkit.tracking.fsspec_tracker import LocalFiles

    return LocalFiles()
