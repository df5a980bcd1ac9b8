"""torchrun on one host and on two, for real where torch is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import Tree, backend
from .hosts import Hosts, require_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

# torch may live in an environment of its own: it is ten times the size of everything else.
PYTHON = os.environ.get("SHUNTER_TORCH_PYTHON", "")
SOURCE = str(Path(__file__).parents[2] / "toolkit/src")

SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
line = f"rank {dist.get_rank()} on {os.environ['SM_CURRENT_HOST']} sum {total.item():.0f}\\n"
os.write(1, line.encode())
dist.destroy_process_group()
"""


def require_torch() -> str:
    import importlib.util
    import sys

    if PYTHON:
        return PYTHON
    found = importlib.util.find_spec("torch") is not None
    backend("torch", found, "torch is not installed (name a Python that has it in SHUNTER_TORCH_PYTHON)")
    return sys.executable


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    python = require_torch()
    require_hosts("torch")
    with Hosts(tmp_path, ["algo-1", "algo-2"]) as made:
        for tree in made.trees.values():
            tree.python = python
            tree.script(SUM)
            tree.hyperparameters(
                sagemaker_torch_distributed_enabled="true",
                sagemaker_torch_distributed_processes_per_host="2",
            )
        yield made


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_two_hosts_sum_over_all_ranks(hosts: Hosts) -> None:
    results = hosts.run(timeout=140, PYTHONPATH=SOURCE, SHUNTER_HOST_WAIT_SECONDS="60")
    assert [code for code, _, _ in results.values()] == [0, 0], results
    for i, host in enumerate(["algo-1", "algo-1", "algo-2", "algo-2"]):
        assert f"rank {i} on {host} sum 10\n" in results[host][1]


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_failing_rank_fails_both_hosts(hosts: Hosts) -> None:
    hosts.trees["algo-1"].script("import time; time.sleep(100)")
    hosts.trees["algo-2"].script(
        "import os, time\nif os.environ['RANK'] == '3': raise SystemExit(5)\ntime.sleep(100)"
    )
    results = hosts.run(timeout=140, PYTHONPATH=SOURCE, SHUNTER_GRACE_SECONDS="40")
    assert [code for code, _, _ in results.values()] == [5, 5], results
    report = hosts.trees["algo-2"].report
    assert report["class"] == "user_error"
    assert report["rank"] == 3
    assert hosts.trees["algo-1"].failure.startswith("Host algo-2 failed (exit code 5)")
    assert hosts.pids("algo-1") == hosts.pids("algo-2") == []


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_one_host(tree: Tree) -> None:
    tree.python = require_torch()
    tree.script(SUM)
    tree.hyperparameters(
        sagemaker_torch_distributed_enabled="true", sagemaker_torch_distributed_processes_per_host="2"
    )
    done = tree.train(timeout=90, PYTHONPATH=SOURCE)
    assert done.returncode == 0, done.stderr
    assert "rank 1 on algo-1 sum 3\n" in done.stdout


def test_shell_scripts_are_refused(tree: Tree) -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None and not PYTHON:
        backend("torch", False, "torch is not installed")
    tree.python = require_torch()
    tree.script("exit 0", "run.sh")
    tree.hyperparameters("run.sh", sagemaker_torch_distributed_enabled="true")
    assert tree.train(PYTHONPATH=SOURCE).returncode == 1
    assert "starts Python scripts" in tree.failure


def test_missing_torch_is_a_clear_error(tree: Tree) -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is installed in this environment")
    tree.script("pass")
    tree.hyperparameters(sagemaker_torch_distributed_enabled="true")
    assert tree.train().returncode == 1
    assert "has no torch" in tree.failure
