"""Trackers in jobs that have nothing but the toolkit: a process, a container, nodes of a Slurm cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shunter.runner import get_runner
from shunter.specs import AppState
from shunter.tracker.api import TrackerSource
from shunter.tracker.backend.fsspec import create
from shunter.workspace.toolkit_files import toolkit_archive
from tests.schedulers.slurm.conftest import jobs, slurm
from tests.trusting import trust_project

__all__ = ["jobs", "slurm"]

SCRIPT = """
import sys
from torchx.tracker import app_run_from_env
import torchx.tracker.api as api, shunter.tracker
from torchx.tracker.backend.fsspec import FsspecTracker
from torchx.runtime.tracking import FsspecResultTracker
assert app_run_from_env is api.app_run_from_env
run = app_run_from_env()
assert [type(each) for each in run.backends] == [FsspecTracker], run
run.add_metadata(loss=0.5)
run.add_artifact("model", "/m")
print("noted", run.id, "from", sys.modules[FsspecTracker.__module__].__file__)
try:
    import torchx.specs
except ImportError as error:
    print(error)
"""
ALONE = "import shunter.tracker as ours, torchx.tracker as theirs; assert ours.AppRun is theirs.AppRun"


def check(runs: Path, handle: str) -> None:
    """Check what the script has noted."""
    tracker = create(str(runs))
    assert list(tracker.run_ids()) == [handle]
    assert tracker.metadata(handle) == {"loss": 0.5}
    assert list(tracker.artifacts(handle)) == ["model"]
    assert list(tracker.sources(handle)) == [TrackerSource("sweep-1", None)]


def start(path: str, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": path, **variables}
    args = [os.path.realpath(sys.executable), "-c", code]
    return subprocess.run(args, env=env, capture_output=True, text=True, check=False)


def test_the_toolkit_serves_the_names_in_jobs_only(tmp_path: Path) -> None:
    archive = tmp_path / "toolkit.pyz"
    archive.write_bytes(toolkit_archive())
    path = f"{archive}:{archive}/aliases"
    variables = {
        "TORCHX_TRACKERS": "fsspec",
        "TORCHX_TRACKER_FSSPEC_CONFIG": (tmp_path / "runs").as_uri(),
        "TORCHX_PARENT_RUN_ID": "sweep-1",
        "TORCHX_JOB_ID": "local_cwd://shunter/a",
    }
    assert start(path, ALONE, **variables).stderr == ""
    done = start(path, SCRIPT, **variables)
    assert done.returncode == 0, done.stderr
    assert f"from {archive}/" in done.stdout
    assert "No module named 'torchx.specs'" in done.stdout
    check(tmp_path / "runs", "local_cwd://shunter/a")
    for name in ("torchx", "shunter"):
        assert f"No module named '{name}'" in start(path, f"import {name}").stderr
        off = start(str(archive), f"import {name}", **variables)
        assert f"No module named '{name}'" in off.stderr
    real = tmp_path / "real" / "torchx"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("print('the original')")
    assert start(f"{path}:{real.parent}", "import torchx", **variables).stdout == "the original\n"


@pytest.fixture
def project(project: Path, tmp_path: Path) -> Path:
    (project / "train.py").write_text(SCRIPT)
    (project / "shunter.toml").write_text(f'[tracker.fsspec]\nconfig = "file://{tmp_path}/runs"\n')
    trust_project()
    return project


def run(project: Path, scheduler: str, cfg: dict[str, Any], *args: str) -> str:
    with get_runner() as runner:
        handle = runner.run_component(
            "train.script",
            ["--script", "train.py", "--cpu", "1", "--memMB", "256", *args],
            scheduler,
            cfg,
            workspace=str(project),
            parent_run_id="sweep-1",
        )
        status = runner.wait(handle)
        assert status is not None
        lines = list(runner.log_lines(handle, status.roles[0].role))
        assert status.state == AppState.SUCCEEDED, "".join(lines)
    return handle


def test_a_process(project: Path, tmp_path: Path) -> None:
    check(tmp_path / "runs", run(project, "local_cwd", {}))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("docker")
def test_a_container(project: Path, tmp_path: Path, image: str) -> None:
    made = []
    try:
        (tmp_path / "runs").mkdir()
        mount = f"type=bind,src={tmp_path}/runs,dst={tmp_path}/runs"
        made.append(run(project, "local_docker", {}, "--image", image, "--mounts", mount))
        check(tmp_path / "runs", made[0])
    finally:
        with get_runner() as runner:
            for handle in made:
                runner.delete(handle)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_slurm(slurm: Any, project: Path, tmp_path: Path) -> None:
    check(tmp_path / "runs", run(project, "slurm", {}))
