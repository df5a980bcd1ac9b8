"""Hydra: multiruns by our launcher and by the one for submitit, and jobs that a configuration describes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shunter.runner import get_runner
from tests import backends
from tests.backends import hydra_python
from tests.slurm_cluster import shared_cluster as shared_slurm

ROOT = Path(__file__).parents[2]
SCRIPT = """
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None, config_path="conf", config_name="base")
def main(cfg):
    if cfg.lr > 5:
        raise ValueError("too large")
    return [cfg.lr * 2, HydraConfig.get().job.num]

if __name__ == "__main__":
    main()
"""
#: A program around it, since Hydra does not print what the launcher returns.
SWEEP = """
import runpy, sys
from hydra.core.utils import JobReturn

value = JobReturn.return_value

def shown(self):
    print("returned", self._return_value)
    return value.fget(self)

JobReturn.return_value = property(shown, value.fset)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_multirun(tmp_path: Path) -> None:
    python = hydra_python()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "base.yaml").write_text("lr: 1\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "sweep.py").write_text(SWEEP)
    sources = [str(ROOT / "src"), str(ROOT / "hydra-shunter-launcher" / "src")]

    def launch(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "sweep.py", "train.py", "-m", "hydra/launcher=shunter", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sources)},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    done = launch("lr=1,2", "hydra.sweep.dir=out dir")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("returned")] == [
        "returned [2, 0]",
        "returned [4, 1]",
    ]
    assert (tmp_path / "out dir" / "1" / ".hydra" / "config.yaml").read_text() == "lr: 2\n"
    failed = launch("lr=9")
    assert failed.returncode == 1
    assert "is FAILED: train/0: exit code 1; shunter why local_cwd://" in failed.stderr
    with get_runner() as runner:
        assert len(runner.jobs()) == 3


#: The example of Hydra's page on its submitit launcher, with the two lines of our documentation.
SUBMITIT_SCRIPT = """
import shunter.compat.submitit

shunter.compat.submitit.install()

import logging
import os
import hydra

log = logging.getLogger(__name__)

@hydra.main(version_base=None, config_path="conf", config_name="base")
def main(cfg):
    import submitit

    env = submitit.JobEnvironment()
    log.info("task %s on %s %s", cfg.task, env.cluster, os.environ.get("FROM_SETUP"))
    return cfg.task * 2

if __name__ == "__main__":
    main()
"""
LAUNCHERS = {
    "local": "timeout_min: 5",
    "slurm": """
    timeout_min: 5
    partition: cpu
    cpus_per_task: 1
    mem_gb: 1
    array_parallelism: 1
    signal_delay_s: 30
    max_num_timeout: 1
    setup: ["export FROM_SETUP=yes"]
    additional_parameters: {nice: 1}
""",
}
CONFIG = """
defaults:
  - override hydra/launcher: submitit_{cluster}
  - _self_
task: 1
hydra:
  sweep: {{dir: out}}
  launcher:
    {launcher}
"""


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_the_launcher_for_submitit(
    cluster: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    python = hydra_python()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    if cluster == "slurm":
        backends.need("slurm")
        environment |= shared_slurm(tmp_path_factory).environment
    (tmp_path / "conf").mkdir()
    config = CONFIG.format(cluster=cluster, launcher=LAUNCHERS[cluster])
    (tmp_path / "conf" / "base.yaml").write_text(config)
    (tmp_path / "train.py").write_text(SUBMITIT_SCRIPT)
    (tmp_path / "sweep.py").write_text(SWEEP)
    done = subprocess.run(
        [python, "sweep.py", "train.py", "--multirun", "task=1,2,3"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    returned = [line for line in done.stdout.splitlines() if line.startswith("returned")]
    assert returned == ["returned 2", "returned 4", "returned 6"]
    setup = "yes" if cluster == "slurm" else None
    for number in range(3):
        log = (tmp_path / "out" / str(number) / "train.log").read_text()
        assert f"task {number + 1} on {cluster} {setup}" in log
    with get_runner() as runner:
        assert [job.name for job in runner.jobs()] == ["train"]  # one array


#: In the layout of TorchX's documentation.
JOB = """
defaults:
  - role: echo
app:
  _target_: torchx.specs.AppDef
  name: told
  roles:
    - ${role}
"""
ROLE = """
_target_: torchx.specs.Role
name: r
image: .
entrypoint: echo
args: ["in ${torchx.app_id:}", "${torchx.replica_id:}"]
num_replicas: 1
resource: {_target_: torchx.specs.resource, cpu: 1, memMB: 100}
"""


def test_a_job_of_a_configuration(tmp_path: Path) -> None:
    (tmp_path / ".torchx" / "role").mkdir(parents=True)
    (tmp_path / ".torchx" / "job.yaml").write_text(JOB)
    (tmp_path / ".torchx" / "role" / "echo.yaml").write_text(ROLE)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [hydra_python(), "-m", "shunter", "run", "-s", "local_cwd", "--log", "utils.hydra", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )

    done = run("-cn", "job", "role.num_replicas=2")
    assert done.returncode == 0, done.stderr
    with get_runner() as runner:
        [job] = runner.jobs()
    name = job.handle.rpartition("/")[2]
    for number in (0, 1):
        assert f"r/{number} in {name} {number}\n" in done.stderr
    missing = run("-cn", "nothing")
    assert missing.returncode != 0
    assert "nothing" in missing.stderr.splitlines()[0]
