"""Scripts that describe their packages in five ways, on the schedulers that run here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shunter.runner import get_runner
from shunter.specs import AppState
from tests import backends, grid_engine, ray_cluster, slurm_cluster
from tests.environments.conftest import UV
from tests.schedulers.lsf.conftest import stand_in
from tests.toolkit.image import temporary_image

SCRIPT = "import sys, six; print('six', six.__version__, 'environments' in sys.prefix)\n"
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "wheels"}
SAGEMAKER = {"role": "arn:aws:iam::123456789012:role/r", "instance_type": "ml.m5.large"}


def header(*lines: str) -> str:
    return "".join(f"{line}\n" for line in ("# /// script", *(f"# {line}" for line in lines), "# ///"))


#: What begins a script, by how it describes its packages.
KINDS = {
    "header": header('dependencies = ["six<1.17"]'),
    "python": header('dependencies = ["six<1.17"]', 'requires-python = ">=3.9"'),
    "lock": header('dependencies = ["six<1.17"]', 'requires-python = ">=3.9"'),
    "settings": header('dependencies = ["six"]', "[tool.uv]", 'constraint-dependencies = ["six<1.17"]'),
    "requirements": "",
}
#: What uv has to build, in containers without uv and network.
OF_UV = ("lock", "settings")


@dataclass
class Place:
    """A scheduler, and what a job needs there."""

    scheduler: str
    options: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image with a name that AWS accepts."""
    with temporary_image(name="123456789012.dkr.ecr.us-east-1.amazonaws.com/shunter-test") as made:
        yield made


@pytest.fixture
def place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    packages: None,
) -> Place:
    """The place of the test's parameter, with everything that it needs started."""
    name: str = request.param
    shared = {"shared_dir": str(tmp_path / "shared")}
    if name == "local_docker":
        return Place(name, words=["--image", request.getfixturevalue("image")])
    if name == "slurm":
        backends.need("slurm")
        cluster = slurm_cluster.shared_cluster(tmp_path_factory)
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        return Place(name, {**shared, "partition": "cpu", "time": "5"}, ["--cpu", "1", "--memMB", "64"])
    if name == "sge":
        backends.need("sge")
        for variable, value in grid_engine.shared_cluster(tmp_path_factory).environment.items():
            monkeypatch.setenv(variable, value)
        return Place(name, shared)
    if name == "lsf":
        for variable, value in stand_in(tmp_path).items():
            monkeypatch.setenv(variable, value)
        return Place(name, shared)
    if name == "ray":
        backends.need("ray")
        monkeypatch.setenv("RAY_ADDRESS", ray_cluster.shared_cluster(tmp_path_factory).address)
        # without network: uv has seen the packages
        known = {"UV_OFFLINE": "1", "UV_CACHE_DIR": os.environ["UV_CACHE_DIR"]}
        path = f"{os.path.dirname(UV)}{os.pathsep}{os.environ['PATH']}"
        kept = {"SHUNTER_ENVIRONMENTS": str(tmp_path / "environments")}
        return Place(name, variables={**known, **kept, "PATH": path})
    monkeypatch.setenv("SHUNTER_SAGEMAKER_DOCKER", "never" if name == "sagemaker processes" else "always")
    pytest.importorskip("botocore")
    words = ["--image", request.getfixturevalue("image")]
    return Place("sagemaker_local", dict(SAGEMAKER), words, OFFLINE if "containers" in name else {})


SCHEDULERS = ["local_docker", "slurm", "sge", "lsf", "ray", "sagemaker processes", "sagemaker containers"]
FAST = ("local_docker", "slurm", "sge", "lsf", "sagemaker processes")
CASES = [
    pytest.param(scheduler, kind, marks=[] if kind == "header" and scheduler in FAST else [pytest.mark.slow])
    for scheduler in SCHEDULERS
    for kind in KINDS
    if not (scheduler == "sagemaker containers" and kind in OF_UV)
]


@pytest.mark.timeout(200)
@pytest.mark.filterwarnings("ignore:.*results stay on the node:RuntimeWarning")
@pytest.mark.parametrize(("place", "kind"), CASES, indirect=["place"])
def test_a_script_gets_the_packages_that_it_describes(place: Place, kind: str, project: Path) -> None:
    (project / "s.py").write_text(KINDS[kind] + SCRIPT)
    words = ["--script", "s.py", *place.words]
    if kind == "requirements":
        (project / "requirements.txt").write_text("six<1.17\n")
        words += ["--environment", "requirements.txt"]
    if kind == "lock":
        subprocess.run([UV, "lock", "--quiet", "--script", "s.py"], check=True)
    if place.variables.get("PIP_FIND_LINKS"):
        script = "import sys; from pip._internal.cli.main import main; sys.exit(main(sys.argv[1:]))"
        pip = ["python3", "-c", script, "download", "--quiet", "--no-deps", "--dest", "wheels", "six<1.17"]
        subprocess.run(pip, check=True)
    if place.variables.get("UV_OFFLINE"):  # let uv see the package
        target = ["--target", str(project.parent / "seen")]
        subprocess.run([UV, "pip", "install", "--quiet", *target, "six<1.17"], check=True)
    if place.variables:
        words += ["--env", ",".join(f"{name}={value}" for name, value in place.variables.items())]
    with get_runner() as runner:
        handle = runner.run_component("train.script", words, place.scheduler, place.options, workspace=".")
        state = runner.wait(handle).state
        lines = list(runner.log_lines(handle, "s"))
        runner.delete(handle)
    assert state == AppState.SUCCEEDED, lines
    assert ["six", "1.16.0", "True"] in [line.split() for line in lines]
