"""Environments in containers of a real daemon, installed by the image's pip at the start of the job."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.docker import images
from shunter.docker.command import DockerCommand
from shunter.errors import ConfigError
from shunter.runner import get_runner
from shunter.specs import AppState
from tests.backends import need
from tests.kubernetes.stub import container_cluster
from tests.toolkit.image import make_image


@pytest.fixture
def image() -> Iterator[str]:
    need("docker")
    tag = f"shunter-test-{uuid.uuid4().hex[:12]}:1"
    make_image(tag)
    yield tag
    images.remove(DockerCommand(), tag)


@pytest.fixture
def cluster(scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For Kubernetes, an API server whose pods are containers, and nothing besides."""
    if scheduler != "kubernetes":
        yield
        return
    need("lightkube")
    with container_cluster(tmp_path / "kubeconfig"):
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield


@pytest.fixture
def wheels(packages: None, project: Path) -> Path:
    """A folder in the project with a wheel that a container without network can install."""
    target = project / "wheels"
    script = "import sys; from pip._internal.cli.main import main; sys.exit(main(sys.argv[1:]))"
    pip = ["python3", "-c", script, "download", "--quiet", "--no-deps", "--dest", str(target), "six"]
    subprocess.run(pip, check=True)
    return target


@pytest.mark.filterwarnings("ignore:role .* a pod keeps no files")
@pytest.mark.parametrize("scheduler", ["local_docker", pytest.param("kubernetes", marks=pytest.mark.slow)])
def test_the_toolkit_installs_it_in_the_container(image, wheels, project, scheduler, cluster):
    (project / "s.py").write_text(
        '# /// script\n# dependencies = ["six"]\n# ///\nimport sys, six; print(sys.prefix, sys.base_prefix)\n'
    )
    offline = ["--env", "PIP_NO_INDEX=1,PIP_FIND_LINKS=wheels"]
    arguments = ["--script", "s.py", "--image", image, *offline]
    with get_runner() as runner:
        handle = runner.run_component("train.script", arguments, scheduler, {}, workspace=".")
        state = runner.wait(handle).state
        lines = list(runner.log_lines(handle, "s"))
        runner.delete(handle)
    assert state == AppState.SUCCEEDED, lines
    prefix, base = lines[-1].split()
    assert prefix.startswith("/root/.cache/shunter/environments/")
    assert base == "/usr"


def test_its_files_have_to_travel_with_the_code(project, tmp_path):
    (tmp_path / "elsewhere.txt").write_text("six\n")
    (project / "s.py").write_text("")
    arguments = ["--script", "s.py", "--image", "x:1", "--environment", "../elsewhere.txt"]
    with get_runner() as runner, pytest.raises(ConfigError, match=r"\.\./elsewhere\.txt does not travel"):
        runner.dryrun_component("train.script", arguments, "local_docker", {}, workspace=".")
