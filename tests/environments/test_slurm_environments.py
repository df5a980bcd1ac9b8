"""Environments on the shared storage of a real Slurm."""

from __future__ import annotations

import json
import os

import pytest

from shunter.errors import BackendError
from shunter.runner import get_runner
from shunter.schedulers.hpc import shared_environments
from shunter.specs import AppState
from shunter.specs.sweep_points import Point
from shunter.sweeps import run_sweep
from tests import backends
from tests.environments.conftest import UV
from tests.slurm_cluster import shared_cluster

SCRIPT = """\
# /// script
# dependencies = ["six", "idna"]
# ///
import sys, six, idna
print("runs", sys.prefix)
"""


@pytest.fixture
def slurm(tmp_path_factory, monkeypatch, tmp_path):
    backends.need("slurm")
    cluster = shared_cluster(tmp_path_factory)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "uv").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\nexec {UV} "$@"\n')
    (bin / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}{os.pathsep}{os.environ['PATH']}")
    return {"partition": "cpu", "time": "5", "shared_dir": str(tmp_path / "shared")}


def test_an_environment_is_built_on_the_shared_storage_before_the_job(slurm, packages, project, tmp_path):
    (project / "s.py").write_text(SCRIPT)
    arguments = ["--script", "s.py", "--cpu", "1", "--memMB", "64"]
    with get_runner() as runner:
        plan = runner.dryrun_component("train.script", arguments, "slurm", slurm)
        assert plan.environments["s"]["built"] is False
        assert not (tmp_path / "shared").exists()
        handle = runner.schedule(plan)
        assert runner.wait(handle).state == AppState.SUCCEEDED
        (line,) = runner.log_lines(handle, "s")
        plan = runner.dryrun_component("train.script", arguments, "slurm", slurm)
    (pointer,) = (tmp_path / "shared" / "environments").glob("*.json")
    folder = str(pointer.parent / json.loads(pointer.read_text())["folder"])
    assert line.split() == ["runs", f"{folder}/venv"]
    assert plan.environments["s"]["place"] == folder


def test_what_does_not_exist_is_an_error_before_the_job_is_submitted(slurm, packages, project, tmp_path):
    (project / "s.py").write_text(SCRIPT.replace("idna", "shunter-has-no-such-package"))
    with get_runner() as runner, pytest.raises(BackendError, match="shunter-has-no-such-package"):
        runner.run_component("train.script", ["--script", "s.py", "--cpu", "1"], "slurm", slurm)
    assert not list((tmp_path / "shared").glob("jobs/*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_two_hundred_tasks_on_nodes_without_network_one_builds(
    slurm, packages, project, tmp_path, monkeypatch
):
    (project / "s.py").write_text(SCRIPT)
    arguments = ["--script", "s.py", "--cpu", "1", "--memMB", "64"]
    with get_runner() as runner:
        assert runner.wait(runner.run_component("train.script", arguments, "slurm", slurm))
        (built,) = (tmp_path / "shared" / "environments").glob("*.json")
        calls = len((tmp_path / "calls").read_text().splitlines())
        # as if it had been removed after the job was submitted; uv has the packages in its cache
        pointer = built.parent / "other.json"
        monkeypatch.setattr(shared_environments, "build", lambda *_: str(pointer))
        arguments += ["--env", f"UV_OFFLINE=1,UV_CACHE_DIR={os.environ['UV_CACHE_DIR']}"]
        points = [Point({"n": str(n)}, [*arguments, "--", str(n)]) for n in range(200)]
        handle = run_sweep(runner, "train.script", points, "slurm", slurm)
        status = runner.wait(handle)
        printed = {next(iter(runner.log_lines(handle, "s", k))) for k in range(200)}
    assert status.state == AppState.SUCCEEDED
    assert printed == {f"runs {pointer.parent / json.loads(pointer.read_text())['folder']}/venv\n"}
    assert len((tmp_path / "calls").read_text().splitlines()) == 2 * calls
    assert not list(pointer.parent.glob("*.lease"))
