"""Environments in containers of a real daemon, installed by the image's pip at the start of the job."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shunter.docker import images
from shunter.docker.command import DockerCommand
from shunter.errors import ConfigError
from shunter.runner import get_runner
from shunter.specs import AppState
from tests.aws.moto_server import running_batch
from tests.backends import need
from tests.sagemaker_endpoint import running_endpoint
from tests.toolkit.image import make_image

SCRIPT = (
    '# /// script\n# dependencies = ["six"]\n# ///\nimport sys, six; print(sys.prefix, sys.base_prefix)\n'
)
OFFLINE = ["--env", "PIP_NO_INDEX=1,PIP_FIND_LINKS=wheels"]


@pytest.fixture
def image() -> Iterator[str]:
    need("docker")
    tag = f"shunter-test-{uuid.uuid4().hex[:12]}:1"
    make_image(tag)
    yield tag
    images.remove(DockerCommand(), tag)


@pytest.fixture
def wheels(packages: None, project: Path) -> Path:
    """A folder in the project with a wheel that a container without network can install."""
    target = project / "wheels"
    script = "import sys; from pip._internal.cli.main import main; sys.exit(main(sys.argv[1:]))"
    pip = ["python3", "-c", script, "download", "--quiet", "--no-deps", "--dest", str(target), "six"]
    subprocess.run(pip, check=True)
    return target


def test_the_toolkit_installs_it_in_the_container(image, wheels, project):
    (project / "s.py").write_text(SCRIPT)
    check_prefix("local_docker", ["--script", "s.py", "--image", image, *OFFLINE], {})


def check_prefix(scheduler: str, arguments: list[str], options: dict[str, Any]) -> None:
    """Run a script that prints its prefixes, and check that it ran in an environment of the container."""
    with get_runner() as runner:
        handle = runner.run_component("train.script", arguments, scheduler, options, workspace=".")
        state = runner.wait(handle).state
        lines = list(runner.log_lines(handle, "s"))
        runner.delete(handle)
    assert state == AppState.SUCCEEDED, lines
    prefix, base = lines[-1].split()
    assert prefix.startswith("/root/.cache/shunter/environments/")
    assert base == "/usr"


@pytest.mark.slow
def test_it_is_installed_in_containers_of_aws_batch(packages, wheels, project, monkeypatch):
    (project / "requirements.txt").write_text("six\n")
    (project / "s.py").write_text("import sys, six; print(sys.prefix, sys.base_prefix)\n")
    arguments = ["--script", "s.py", "--environment", "requirements.txt", "--memMB", "256", *OFFLINE]
    with running_batch() as moto:
        for variable, value in moto.environ().items():
            monkeypatch.setenv(variable, value)
        options = {"queue": moto.queue, "code_location": f"s3://{moto.bucket}/code"}
        check_prefix("aws_batch", [*arguments, "--image", moto.image], options)


@pytest.mark.slow
def test_it_is_installed_in_containers_of_sagemaker(packages, image, wheels, project, moto, monkeypatch):
    (project / "s.py").write_text(SCRIPT)
    with running_endpoint(moto) as (variables, options):
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        find = {"environment": {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/opt/ml/code/wheels"}}
        check_prefix("aws_sagemaker", ["--script", "s.py", "--image", image], {**options, **find})


def test_its_files_have_to_travel_with_the_code(project, tmp_path):
    (tmp_path / "elsewhere.txt").write_text("six\n")
    (project / "s.py").write_text("")
    arguments = ["--script", "s.py", "--image", "x:1", "--environment", "../elsewhere.txt"]
    with get_runner() as runner, pytest.raises(ConfigError, match=r"\.\./elsewhere\.txt does not travel"):
        runner.dryrun_component("train.script", arguments, "local_docker", {}, workspace=".")
