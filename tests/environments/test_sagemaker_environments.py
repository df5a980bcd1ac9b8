"""Environments of SageMaker's training jobs: on this machine, and what a request says of them."""

from __future__ import annotations

import pytest

from shunter.errors import ConfigError
from shunter.runner import get_runner
from shunter.specs import AppState
from tests.backends import need

OPTIONS = {
    "role": "arn:aws:iam::123456789012:role/r",
    "instance_type": "ml.m5.large",
    "region": "us-east-1",
}
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/x:1"
ARGUMENTS = ["--script", "s.py", "--image", IMAGE]


def test_a_host_that_is_a_process_has_it_in_the_state_directory(packages, project, home, monkeypatch):
    need("botocore")
    monkeypatch.setenv("SHUNTER_SAGEMAKER_DOCKER", "never")
    (project / "s.py").write_text(
        '# /// script\n# dependencies = ["six"]\n# ///\nimport sys, six; print("prefix", sys.prefix)\n'
    )
    with get_runner() as runner:
        handle = runner.run_component("train.script", ARGUMENTS, "sagemaker_local", OPTIONS, workspace=".")
        state = runner.wait(handle).state
        lines = list(runner.log_lines(handle, "s"))
    assert state == AppState.SUCCEEDED, lines
    assert lines[-1].startswith(f"prefix {home}/state/environments/")


@pytest.mark.parametrize(
    ("options", "packages_of", "message"),
    [
        ({}, 40, r"takes \d+ characters to describe, and a variable .* has at most 512"),
        ({"toolkit": False}, 1, "leaves out the toolkit"),
        ({"enable_network_isolation": True}, 1, "without network"),
    ],
)
def test_what_cannot_reach_a_container_is_refused(project, options, packages_of, message):
    need("botocore")
    names = ", ".join(f'"package-{number}"' for number in range(packages_of))
    (project / "s.py").write_text(f"# /// script\n# dependencies = [{names}]\n# ///\n")
    with get_runner() as runner, pytest.raises(ConfigError, match=message):
        runner.dryrun_component("train.script", ARGUMENTS, "aws_sagemaker", {**OPTIONS, **options}, ".")
