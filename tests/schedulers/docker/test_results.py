"""The results of containers: in directories of this machine, in the user's mounts, and in the containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.runner import Runner, get_runner
from shunter.schedulers.docker_scheduler import containers
from shunter.schedulers.kept_results import LocalResults
from tests.result_jobs import SCRIPT, check_results


@pytest.fixture
def runner(project: Path) -> Iterator[Runner]:
    (project / "train.py").write_text(SCRIPT)
    with get_runner("test-results") as runner:
        yield runner


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "user's mount", "container"])
def test_results_are_found_wherever_the_job_left_them(
    runner: Runner, image: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--image", image, "--script", "train.py"]
    if where == "container":  # as if the daemon were another machine's
        monkeypatch.setattr(containers.ContainerMaker, "_make_directories", lambda self: None)
    elif where == "user's mount":
        (tmp_path / "model").mkdir()
        words += ["--mounts", f"type=bind,src={tmp_path}/model,dst=/opt/ml/model"]
    handle = runner.run_component("train.script", words, "local_docker", workspace=".")
    try:
        runner.wait(handle)
        place = check_results(runner, handle)
        assert isinstance(place, LocalResults) == (where == "here")
    finally:
        runner.delete(handle)
