"""NeMo-Run 0.11.1 itself, beside a real TorchX and with shunter in its place: schedulers, experiments."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends import need, nemo_python
from tests.schedulers.docker.host_image import make_host_image
from tests.slurm_cluster import private_cluster
from tests.toolkit.image import temporary_image

ROOT = Path(__file__).parents[2]
SITE = f"{ROOT / 'src'}:{ROOT / 'toolkit' / 'src'}"
#: ``0`` leaves TorchX alone, ``instead`` serves shunter under its name.
MODES = pytest.mark.parametrize("torchx", ["0", "instead"])
BEGIN = """
import shunter.torchx_alias
if shunter.torchx_alias.comes_first():
    shunter.torchx_alias.install()  # as the .pth file of the wheel does
import json, sys, torchx, nemo_run as run
assert (torchx.__spec__.origin == "shunter") == shunter.torchx_alias.comes_first()
"""
ENTRY_POINTS = """
from importlib.metadata import entry_points
from nemo_run.run.torchx_backend.runner import get_runner
made = {}
with get_runner() as runner:
    for point in entry_points(group="torchx.schedulers"):
        if point.value.startswith("nemo_run."):
            try:
                scheduler = runner._scheduler(point.name)
                made[point.name] = type(scheduler).__name__
                list(scheduler.run_opts())
            except AssertionError as error:
                made[point.name] = str(error).partition(".")[0]
print(json.dumps(made))
"""
MADE = {
    "dgx_cloud": "DGXCloudScheduler",
    "docker_persistent": "PersistentDockerScheduler",
    "kubeflow": "KubeflowScheduler",
    "lepton": "LeptonScheduler",
    "local_persistent": "PersistentLocalScheduler",
    "skypilot": "Skypilot is not installed",
    "skypilot_jobs": "Skypilot is not installed",
    "slurm_tunnel": "SlurmTunnelScheduler",
}
EXPERIMENT = """
if __name__ == "__main__":
    {setup}
    with run.Experiment("words") as experiment:
        for name, words in {scripts}.items():
            script = run.Script(inline=words)
            experiment.add(script, executor=executor.clone(), tail_logs=True, name=name)
        experiment.run(sequential=True, detach=False, tail_logs=True)
    states = experiment.status(return_dict=True)
    print("STATES", json.dumps({{name: str(row["status"]).split(" ")[0] for name, row in states.items()}}))
"""


class Nemo:
    """Runs programs with NeMo-Run's Python."""

    def __init__(self, directory: Path, torchx: str) -> None:
        self.directory = directory
        self.python = nemo_python()
        self.environ = {
            **os.environ,
            "PYTHONPATH": SITE,
            "SHUNTER_TORCHX": torchx,
            "NEMORUN_HOME": str(directory / "nemo"),
        }

    def run(self, program: str, *arguments: str) -> str:
        path = self.directory / "program.py"
        path.write_text(BEGIN + program)
        done = subprocess.run(
            [self.python, str(path), *arguments],
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def experiment(self, setup: str, scripts: dict[str, str], *arguments: str) -> tuple[str, Any]:
        """Run an experiment of scripts; returns its output and the state of each job."""
        said = self.run(EXPERIMENT.format(setup=setup, scripts=repr(scripts)), *arguments)
        (states,) = [line[7:] for line in said.splitlines() if line.startswith("STATES ")]
        return said, json.loads(states)


@MODES
@pytest.mark.slow
def test_nemo_run_s_eight_schedulers_and_a_local_experiment(tmp_path: Path, torchx: str) -> None:
    nemo = Nemo(tmp_path, torchx)
    assert json.loads(nemo.run(ENTRY_POINTS).splitlines()[-1]) == MADE
    scripts = {"good": "echo first line; echo second line", "bad": "echo third line; exit 3"}
    said, states = nemo.experiment("executor = run.LocalExecutor()", scripts)
    assert states == {"good": "SUCCEEDED", "bad": "FAILED"}
    if torchx != "0":  # with the real TorchX, NeMo-Run sometimes leaves before it has printed the logs
        for word in ("first", "second", "third"):
            assert f"{word} line" in said
    assert '"api"' not in said  # events do not get into the program's log


def logs_below(directory: Path, pattern: str) -> list[str]:
    """Return the lines that jobs wrote into their logs."""
    lines = [line for path in directory.rglob(pattern) for line in path.read_text().splitlines()]
    return [line for line in lines if line.startswith("from ")]


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    with temporary_image(make_host_image) as made:
        yield made


@MODES
@pytest.mark.slow
def test_nemo_run_s_docker_executor(tmp_path: Path, torchx: str, image: str) -> None:
    setup = (
        "executor = run.DockerExecutor(container_image=sys.argv[1], packager=run.Packager(),\n"
        "        volumes=['/usr:/usr:ro'], env_vars={'WHO': 'container'})"
    )
    _, states = Nemo(tmp_path, torchx).experiment(setup, {"job": "echo from the $WHO"}, image)
    assert states == {"job": "SUCCEEDED"}
    assert logs_below(tmp_path / "nemo", "log_*.out") == ["from the container"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nemo_run_s_slurm_executor(tmp_path: Path) -> None:
    nemo_python()
    need("slurm")
    setup = (
        "from nemo_run.core.tunnel.client import LocalTunnel\n"
        "    executor = run.SlurmExecutor(account='', partition='cpu', nodes=2, ntasks_per_node=1,\n"
        "        mem='100M', time='00:05:00', packager=run.Packager(),\n"
        "        tunnel=LocalTunnel(job_dir=sys.argv[1] + '/nemo/experiments'))\n"
        "    executor.container_image = executor.exclusive = None"
    )
    with private_cluster(accounting=True) as cluster:
        for torchx in ("0", "instead"):
            directory = tmp_path / torchx
            directory.mkdir()
            nemo = Nemo(directory, torchx)
            nemo.environ |= cluster.environment
            said, states = nemo.experiment(setup, {"job": "echo from $(hostname)"}, str(directory))
            assert states == {"job": "SUCCEEDED"}, said
            first, second = logs_below(directory / "nemo", "log-*.out")
            assert first != second
