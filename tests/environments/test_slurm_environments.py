"""Environments on the shared storage of a real Slurm."""

from __future__ import annotations

import json

import pytest

from shunter.errors import BackendError
from shunter.runner import get_runner
from shunter.specs import AppState
from tests import backends
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
