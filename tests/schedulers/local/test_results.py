"""The results of jobs on this machine, as `Runner.results` gives them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.errors import ConfigError, UnknownAppException, UsageError
from shunter.runner import Runner, get_runner
from shunter.schedulers.kept_results import LocalResults
from shunter.specs import AppDef, Role
from tests.result_jobs import SCRIPT, check_results


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    with get_runner("test") as runner:
        yield runner


def test_files_of_a_replica_are_listed_and_read_and_nothing_else_is(runner: Runner) -> None:
    handle = runner.run_component("train.script", ["--script", "train.py"], "local_cwd")
    runner.wait(handle)
    place = check_results(runner, handle)
    for path in ("output/data/passwd", "output/data/etc/passwd", "output/data/pipe"):
        with pytest.raises(ConfigError, match="no result"):
            list(place.read(path))
    for path in ("../../../job.json", "model/../../job.json", "/etc/passwd", "input/config/x", "model"):
        with pytest.raises(ConfigError, match="no result"):
            list(place.read(path))
    with pytest.raises(UsageError, match="no replica train/1"):
        runner.results(handle, "train", 1)
    runner.delete(handle)
    with pytest.raises(UnknownAppException):
        runner.results(handle, "train", 0)


def test_a_link_that_takes_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("w")
    (tmp_path / "secret").write_text("s")
    place = LocalResults.below(str(tmp_path))
    assert [file.path for file in place.files()] == ["model/weights"]
    os.unlink(tmp_path / "model" / "weights")
    (tmp_path / "model" / "weights").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match="no result"):
        list(place.read("model/weights"))
    (tmp_path / "model" / "weights").unlink()
    (tmp_path / "model").rmdir()
    (tmp_path / "model").symlink_to(tmp_path)
    assert place.files() == []
    assert place.left_out
    with pytest.raises(ConfigError, match="no result"):
        list(place.read("model/secret"))


def test_a_program_without_the_toolkit_has_no_results(runner: Runner) -> None:
    handle = runner.run(AppDef("plain", [Role("r", "", entrypoint="true")]), "local_cwd")
    runner.wait(handle)
    with pytest.raises(ConfigError, match="without the toolkit") as error:
        runner.results(handle, "r", 0)
    assert "train.script" in error.value.hint
