"""Monarch 0.7.0, torchft 0.2.0 and Ax 1.3.1 themselves, with shunter in the place of their TorchX."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.backends import need, products_python
from tests.slurm_cluster import private_cluster

ROOT = Path(__file__).parents[2]
SITE = f"{ROOT / 'src'}:{ROOT / 'toolkit' / 'src'}"
BEGIN = """
import shunter.torchx_alias
shunter.torchx_alias.install()  # as the .pth file of the wheel does
import json, os, sys, time, torchx
assert torchx.__spec__.origin == "shunter"
"""
#: A training script; monarch runs it in each process of the mesh.
TRAIN = """
import os, socket
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
print("from", socket.gethostname(), *(os.environ[name] for name in names), flush=True)
with open(os.path.join(os.environ["OUT"], "rank" + os.environ["RANK"]), "w") as file:
    file.write(socket.gethostname())
"""
SPMD = """
from monarch.job.spmd import serve
from torchx import specs

scheduler, nodes = sys.argv[1], int(sys.argv[2])
words = ["torchrun", f"--nnodes={nodes}", "--nproc-per-node=2", "train.py"]
env = {"PATH": os.environ["PATH"], "OUT": os.environ["OUT"]}
role = specs.Role("trainer", image="", entrypoint="env", args=words, env=env, num_replicas=nodes)
role.resource = specs.Resource(cpu=1, gpu=0, memMB=200)
cfg = {"partition": "cpu"} if scheduler == "slurm" else {}
job = serve(specs.AppDef("spmd", roles=[role]), scheduler=scheduler, scheduler_cfg=cfg)
job.state(cached_path=None)  # Monarch's `kill` ends nothing before
try:
    job.run_spmd()
finally:
    job.kill()
print("END", job._app_handle, job._get_runner().wait(job._app_handle).state.name)
"""
TORCHFT = """
from torchft.torchx import hsdp
from torchx.runner import get_runner

app = hsdp(replicas=2, script="train.py", memMB=100)
with get_runner() as runner:
    handle = runner.run(app, "local_cwd")
    print("END", handle, runner.wait(handle).state.name)
    for role in app.roles:
        print(*(line for line in runner.log_lines(handle, role.name) if line.startswith("from")))
"""
#: torchft's programs that keep the replicas of a job running, and that end some.
TORCHFT_ON_SLURM = """
from argparse import Namespace
from torchft.examples.slurm import punisher, runner as example
from torchx import specs
from torchx.runner import get_runner

arguments = Namespace(nodes=1, nproc_per_node=1, replica_count=2, process_group="gloo", num_fragments=2,
    enable_semi_sync=True, semi_sync_method="diloco")
with get_runner() as runner:
    known = []
    for look in range(2):
        example.monitor(runner, arguments)
        started = [job.app_handle for job in runner.list("slurm") if job.app_handle not in known]
        print("STARTED", len(started))
        known += started
        while any(runner.status(handle).state < specs.AppState.RUNNING for handle in started):
            time.sleep(0.1)
        if look == 0:
            punisher.kill_one(runner)
            (killed,) = [handle for handle in started if "/ft-1-" in handle]
            print("KILLED", runner.wait(killed).state.name)
    punisher.kill_all(runner)
    print("END", *(runner.wait(handle).state.name for handle in known))
"""
AX = """
import unittest
unittest.main("ax.runners.tests.test_torchx", argv=["ax"])
"""


class Product:
    """Runs programs with the Python of the products, in a project with a training script."""

    def __init__(self, directory: Path) -> None:
        self.python = products_python()
        self.program = directory / "program.py"
        self.out = directory / "out"
        self.project = directory / "project"
        self.out.mkdir()
        self.project.mkdir()
        (self.project / "train.py").write_text(TRAIN)
        self.environ = {
            **os.environ,
            "PYTHONPATH": SITE,
            "PATH": f"{Path(self.python).parent}:{os.environ['PATH']}",
            "SHUNTER_TORCHX": "1",
            "OUT": str(self.out),
        }

    def run(self, program: str, *arguments: str, hosts: Path | None = None) -> str:
        """Run a program; ``hosts`` is a file with the names of the hosts that it has to find."""
        self.program.write_text(BEGIN + program)
        command = [self.python, str(self.program), *arguments]
        if hosts is not None:
            script = f"mount --bind {hosts} /etc/hosts && exec {shlex.join(command)}"
            command = ["unshare", "--mount", "sh", "-c", script]
        done = subprocess.run(
            command,
            cwd=self.project,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def hosts_of_ranks(self) -> list[str]:
        """Return the host of each rank, which it wrote itself."""
        return [path.read_text() for path in sorted(self.out.iterdir())]


@pytest.mark.slow
def test_monarch_s_spmd_job_on_this_machine(tmp_path: Path) -> None:
    product = Product(tmp_path)
    said = product.run(SPMD, "local_cwd", "1")
    assert re.search(r"^END local_cwd:///spmd-\w+ CANCELLED$", said, re.MULTILINE)
    assert len(product.hosts_of_ranks()) == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_monarch_s_spmd_job_and_torchft_s_replicas_on_slurm(tmp_path: Path) -> None:
    product = Product(tmp_path)
    need("slurm_accounting")
    (product.project / "torchtitan").mkdir()
    (product.project / "torchtitan" / "train.py").write_text("import time; time.sleep(600)")
    with private_cluster(accounting=True) as cluster:
        product.environ |= cluster.environment
        said = product.run(SPMD, "slurm", "2", hosts=cluster.root / "hosts")
        assert re.search(r"^END slurm:///spmd-\w+ CANCELLED$", said, re.MULTILINE)
        first, second, third, fourth = product.hosts_of_ranks()
        assert first == second != third == fourth
        said = product.run(TORCHFT_ON_SLURM)
    words = ("STARTED", "KILLED", "END")
    lines = [line for line in said.splitlines() if line.startswith(words)]
    assert lines == ["STARTED 3", "KILLED CANCELLED", "STARTED 1", f"END {' '.join(['CANCELLED'] * 4)}"]
    assert "names of variables hold '=', which begins the value: TORCH_CUDA_SANITIZER=1" in said


@pytest.mark.slow
def test_torchft_s_component(tmp_path: Path) -> None:
    said = Product(tmp_path).run(TORCHFT)
    assert [line.split()[2:] for line in said.splitlines() if line.startswith("from")] == [
        ["0", "1", "0"]
    ] * 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ax_s_own_tests_of_its_runner_and_metric(tmp_path: Path) -> None:
    said = Product(tmp_path).run(AX)
    assert "Ran 4 tests" in said
    assert "Retrieved COMPLETED trials: 4 - 5" in said
