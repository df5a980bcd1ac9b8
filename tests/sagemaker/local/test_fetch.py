"""Results of ``aws_sagemaker``'s jobs, which this machine's endpoint runs in containers, from moto's S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from shunter.runner import get_runner
from tests import result_jobs
from tests.forked_command import run_shunter
from tests.sagemaker_endpoint import running_endpoint


@pytest.mark.slow
def test_results_are_fetched_from_where_the_service_puts_them(
    image: str, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(result_jobs.SCRIPT)
    monkeypatch.chdir(project)
    with running_endpoint(moto) as (variables, options):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with get_runner() as runner:
            arguments = ["--script", "train.py", "--image", image]
            handle = runner.run_component("train.script", arguments, "aws_sagemaker", options, workspace=".")
            runner.wait(handle)
            result_jobs.check_results(runner, handle)
        done = run_shunter("fetch", handle, "model/*", "--to", "here")
        assert done.returncode == 0, done.stderr
        assert (project / "here/model/sub/weights").read_bytes() == result_jobs.WEIGHTS
        again = run_shunter("fetch", handle, "model/*", "--to", "here")
        assert "unchanged" in again.stdout or "already" in again.stdout + again.stderr, again
