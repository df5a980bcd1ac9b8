"""How a stop reaches the script: one SIGTERM for each process, and the whole grace period to act on it."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from .conftest import Tree, backend
from .test_torchrun import SOURCE, require_torch

if TYPE_CHECKING:
    import subprocess

#: Notes what happens to it, and saves its state, for SAVING seconds at least, until there is a file "gate".
#: Rank 1 does not listen.
SAVER = """
import os, signal, sys, time
base = os.environ["SAGEMAKER_BASE_DIR"]
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "0"))
def note(word):
    with open(base + "/notes" + rank, "a") as file:
        file.write(word + "\\n")
def save(*_):
    note("saving")
    least = time.monotonic() + float(os.environ.get("SAVING", 0))
    while not os.path.exists(base + "/gate") or time.monotonic() < least:
        time.sleep(0.01)
    note("saved")
    sys.exit(0)
if rank == "0":
    signal.signal(signal.SIGTERM, save)
note("up")
while True:
    time.sleep(300)
"""


def noted(tree: Tree, rank: int = 0) -> list[str]:
    path = tree.base / f"notes{rank}"
    return path.read_text().split() if path.exists() else []


def wait(process: subprocess.Popen[str], tree: Tree, *words: str, rank: int = 0) -> None:
    deadline = time.monotonic() + 60
    while noted(tree, rank) != list(words):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, (words, noted(tree, rank))
        time.sleep(0.01)


def check_that_it_saves(process: subprocess.Popen[str], tree: Tree) -> None:
    process.send_signal(signal.SIGTERM)
    wait(process, tree, "up", "saving")
    process.send_signal(signal.SIGTERM)
    (tree.base / "gate").touch()
    process.communicate(timeout=60)
    assert noted(tree) == ["up", "saving", "saved"]
    assert tree.report["outcome"] == "stopped"


LAUNCH = "import os, subprocess, sys; subprocess.run([sys.executable, 'save.py']{})"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", "python save.py & wait\n"),
        ("run.sh", "setsid python save.py & wait\n"),
        ("run.sh", "(setsid sh -c 'python save.py; true' &); exec sleep 300\n"),
        ("train.py", LAUNCH.format("")),
        ("train.py", LAUNCH.format(", start_new_session=True")),
    ],
)
def test_who_saves_below_the_entry_point(tree: Tree, name: str, text: str) -> None:
    tree.script(SAVER, "save.py")
    tree.script(text.replace("python ", f"{sys.executable} "), name)
    tree.hyperparameters(name)
    process = tree.start()
    wait(process, tree, "up")
    check_that_it_saves(process, tree)


@pytest.mark.slow
def test_a_rank_saves_while_another_one_dies_under_mpi(tree: Tree) -> None:
    backend("mpi", bool(shutil.which("mpirun")), "mpirun is needed (openmpi-bin)")
    tree.script(SAVER)
    tree.hyperparameters(sagemaker_mpi_enabled="true", sagemaker_mpi_num_of_processes_per_host="2")
    process = tree.start(SAVING="2")
    wait(process, tree, "up")
    wait(process, tree, "up", rank=1)
    check_that_it_saves(process, tree)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_rank_saves_while_another_one_dies_under_torchrun(tree: Tree) -> None:
    tree.python = require_torch()
    tree.script(SAVER)
    tree.hyperparameters(
        sagemaker_torch_distributed_enabled="true", sagemaker_torch_distributed_processes_per_host="2"
    )
    process = tree.start(PYTHONPATH=SOURCE)
    wait(process, tree, "up")
    wait(process, tree, "up", rank=1)
    check_that_it_saves(process, tree)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_clusters_warning_reaches_the_ranks_under_torchrun(tree: Tree) -> None:
    tree.python = require_torch()
    tree.script(SAVER.replace("SIGTERM", "SIGUSR1"))
    tree.hyperparameters(sagemaker_torch_distributed_enabled="true")
    process = tree.start(PYTHONPATH=SOURCE)
    wait(process, tree, "up")
    process.send_signal(signal.SIGUSR1)
    wait(process, tree, "up", "saving")
    (tree.base / "gate").touch()
    process.communicate(timeout=60)
    assert noted(tree) == ["up", "saving", "saved"]
