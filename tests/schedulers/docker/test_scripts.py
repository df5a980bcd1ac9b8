"""Scripts of `train.script` in containers: under the toolkit, their results on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.errors import BackendError, ConfigError
from shunter.runner import Runner, get_runner
from shunter.schedulers.docker_scheduler import containers
from shunter.schedulers.docker_scheduler.job import ContainerJob
from shunter.schedulers.docker_scheduler.request import IN_CONTAINERS
from shunter.schedulers.docker_scheduler.scheduler import create_scheduler
from shunter.specs import AppState
from shunter.specs.sweep_points import Point
from shunter.sweeps import run_sweep
from tests.toolkit.image import docker

WRITE = """
import os, sys
for place in ("model", "output/data", "checkpoints"):
    open(f"/opt/ml/{place}/file", "w").write("kept")
print(sys.argv[1:], os.environ["SM_MODEL_DIR"])
"""


@pytest.fixture
def project(project: Path) -> Path:
    (project / "train.py").write_text(WRITE)
    return project


@pytest.fixture
def runner() -> Iterator[Runner]:
    with get_runner("test-scripts") as runner:
        yield runner


@pytest.fixture(params=["root", "4321"])
def image_of(request: pytest.FixtureRequest, image: str) -> Iterator[str]:
    """An image whose user is root, or one who may not write to /opt."""
    if request.param == "root":
        yield image
        return
    name = f"{image}-{request.param}"
    docker(
        "build", "--quiet", "--tag", name, "-", input=f"FROM {image}\nUSER {request.param}\nWORKDIR /srv\n"
    )
    yield name
    docker("rmi", "--force", name, check=False)


@pytest.mark.slow
def test_results_are_kept_here_and_go_with_the_job(
    runner: Runner, project: Path, image_of: str, tmp_path: Path
) -> None:
    # folders that do not exist are made, by us
    words = ["--script", "train.py", "--image", image_of, "--checkpoints", f"{tmp_path}/made/checkpoints"]
    if "4321" in image_of:
        words = words[:-2]
    info = runner.dryrun_component("train.script", [*words, "--", "a b"], "local_docker", None, ".")
    assert not (tmp_path / "made").exists()
    handle = runner.schedule(info)
    try:
        status = runner.wait(handle)
        assert status is not None
        assert status.state == AppState.SUCCEEDED, list(runner.log_lines(handle, "train"))
        assert list(runner.log_lines(handle, "train")) == ["['a b'] /opt/ml/model\n"]
        kept = Path(status.results or "")
        assert [(kept / place / "file").read_text() for place in ("model", "output/data", "checkpoints")] == [
            "kept"
        ] * 3
        if "4321" not in image_of:
            assert (tmp_path / "made/checkpoints/file").read_text() == "kept"
        app_id = handle.rpartition("/")[2]
        with contextlib.closing(create_scheduler("x")) as scheduler:
            (found,) = (item for item in scheduler.leftovers({}, 0) if item.app_id == app_id)
        assert found.results
    finally:
        runner.delete(handle)
    assert not ContainerJob.of(app_id).exists()


@pytest.mark.slow
def test_the_results_of_a_failure_are_there(
    runner: Runner, project: Path, image: str, tmp_path: Path
) -> None:
    (project / "train.py").write_text("raise SystemExit('no')\n")
    words = ["--script", "train.py", "--image", image, "--output", f"{tmp_path}/out"]
    handle = runner.run_component("train.script", words, "local_docker", workspace=".")
    try:
        status = runner.wait(handle)
        assert status is not None
        assert status.state == AppState.FAILED
        assert Path(status.results or "").is_dir()
    finally:
        runner.delete(handle)


@pytest.mark.slow
def test_lines_come_when_they_are_written(runner: Runner, project: Path, image: str) -> None:
    (project / "train.py").write_text("import time\nprint('first')\ntime.sleep(600)\n")
    words = ["--script", "train.py", "--image", image]
    handle = runner.run_component("train.script", words, "local_docker", workspace=".")
    try:
        assert next(iter(runner.log_lines(handle, "train", should_tail=True))) == "first\n"
        assert list(runner.log_lines(handle, "train", should_tail=False)) == ["first\n"]
    finally:
        runner.cancel(handle)
        runner.wait(handle)
        runner.delete(handle)


def test_what_cannot_run_is_refused_and_leaves_nothing(runner: Runner, project: Path, image: str) -> None:
    words = ["--image", image, "--script", "nosuch.py"]
    with pytest.raises(BackendError, match=r"there is no script /\S*nosuch\.py in its image"):
        runner.run_component("train.script", words, "local_docker", workspace=".")
    assert list(ContainerJob.all()) == []
    with pytest.raises(ConfigError, match="'BAD IMAGE' is not the name of an image"):
        runner.run_component(
            "train.script", ["--image", "BAD IMAGE", "--script", "train.py"], "local_docker", workspace="."
        )


@pytest.mark.slow
def test_a_daemon_that_sees_other_files_keeps_results_in_its_containers(
    runner: Runner, project: Path, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as seen from a container that was given the daemon's socket alone
    monkeypatch.setattr(containers.ContainerMaker, "_make_directories", lambda self: None)
    words = ["--image", image, "--script", "train.py"]
    handle = runner.run_component("train.script", words, "local_docker", workspace=".")
    try:
        status = runner.wait(handle)
        assert status is not None
        assert (status.state, status.results) == (AppState.SUCCEEDED, IN_CONTAINERS)
    finally:
        runner.delete(handle)


def test_an_error_of_another_kind_stays_one(runner: Runner, project: Path, image: str) -> None:
    words = ["--image", image, "--script", "train.py", "--channel", "training=/no/such/data"]
    with pytest.raises(BackendError, match="/no/such/data"):
        runner.run_component("train.script", words, "local_docker", workspace=".")


@pytest.mark.slow
def test_a_sweep_of_containers_has_one_handle_and_one_copy_of_the_code(
    runner: Runner, project: Path, image: str
) -> None:
    args = {"image": image, "script": "train.py"}
    found = [Point({"n": n}, {**args, "script_args": [n]}) for n in "12"]
    handle = run_sweep(runner, "train.script", found, "local_docker", workspace=".", parallel=2)
    try:
        status = runner.wait(handle)
        assert status is not None
        assert status.state == AppState.SUCCEEDED, status
        lines = ["".join(runner.log_lines(handle, "train", k)).split()[0] for k in (0, 1)]
        assert lines == ["['1']", "['2']"]
        jobs = runner.history.of_sweep(handle.rpartition("/")[2])
        assert len({job.fingerprint for job in jobs}) == 1
    finally:
        runner.delete(handle)
