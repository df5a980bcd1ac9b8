"""Open MPI over sshd on two hosts, for real."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from .conftest import backend
from .hosts import Hosts, require_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRIPT = """
import os, sys
rank = os.environ["OMPI_COMM_WORLD_RANK"]
size, host = os.environ["OMPI_COMM_WORLD_SIZE"], os.environ["SM_CURRENT_HOST"]
line = f"rank {rank} of {size} on {host} {os.environ['SM_MODEL_DIR']} {os.getcwd()} {sys.argv[1:]}\\n"
os.write(1, line.encode())
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    sshd = os.access("/usr/sbin/sshd", os.X_OK)
    backend(
        "mpi",
        bool(shutil.which("mpirun")) and sshd,
        "mpirun and sshd are needed (openmpi-bin, openssh-server)",
    )
    require_hosts("mpi")
    with Hosts(tmp_path, ["algo-1", "algo-2"]) as made:
        for tree in made.trees.values():
            tree.script(SCRIPT)
            tree.hyperparameters(
                sagemaker_mpi_enabled="true",
                sagemaker_mpi_num_of_processes_per_host="2",
                note='"it\'s $HOME"',
            )
        yield made


def test_ranks_run_on_both_hosts_with_their_own_variables(hosts: Hosts) -> None:
    started = time.monotonic()
    results = hosts.run()
    assert [code for code, _, _ in results.values()] == [0, 0], results
    out = results["algo-1"][1]
    for rank, host in enumerate(["algo-1", "algo-1", "algo-2", "algo-2"]):
        base = hosts.trees[host].base
        line = f"rank {rank} of 4 on {host} {base}/model {base}/code ['--note', \"it's $HOME\"]"
        assert f"[1,{rank}]<stdout>:{line}" in out
    assert all(tree.succeeded for tree in hosts.trees.values())
    assert time.monotonic() - started < 25
    assert hosts.pids("algo-2") == []


def test_no_secret_is_written_or_shown(hosts: Hosts) -> None:
    seen = """
        import os, subprocess
        word = "sword" + "fish"
        assert os.environ["DB_PASSWORD"] == word + "-1"
        listing = subprocess.run(["ps", "axwwo", "args"], capture_output=True, text=True, check=True).stdout
        assert word not in listing
        for top in ("/dev/shm", "/etc/environment", os.environ["SM_INPUT_DIR"]):
            for where, _, names in os.walk(top):
                for name in names:
                    path = os.path.join(where, name)
                    assert not os.path.isfile(path) or word.encode() not in open(path, "rb").read()
    """
    for tree in hosts.trees.values():
        tree.script(seen)
    results = hosts.run(DB_PASSWORD="swordfish-1")
    assert [code for code, _, _ in results.values()] == [0, 0], results


@pytest.mark.parametrize("bad", [0, 3])
def test_a_failing_rank_fails_every_host(hosts: Hosts, bad: int) -> None:
    script = f"""
        import os, time
        if os.environ["OMPI_COMM_WORLD_RANK"] == "{bad}":
            raise ValueError("rank is unwell")
        time.sleep(40)
    """
    for tree in hosts.trees.values():
        tree.script(script)
    results = hosts.run()
    assert [code for code, _, _ in results.values()] == [1, 1], results
    report = hosts.trees["algo-1"].report
    assert report["exception"] == "ValueError"
    assert report["rank"] == bad
    assert report["host"] == ("algo-1" if bad == 0 else "algo-2")
    other = hosts.trees["algo-2"]
    assert other.report["class"] == "user_error"
    assert "ValueError: rank is unwell" in other.failure.splitlines()[0]
    assert hosts.pids("algo-1") == hosts.pids("algo-2") == []


def test_a_host_that_never_comes_is_named(hosts: Hosts) -> None:
    process = hosts.start("algo-1", TRAINYARD_HOST_WAIT_SECONDS="1")
    process.communicate(timeout=20)
    assert process.returncode == 1
    assert "did not come within 1 s: algo-2" in hosts.trees["algo-1"].failure


def test_a_lost_host_fails_the_job(hosts: Hosts) -> None:
    for tree in hosts.trees.values():
        tree.script("import os, time; os.write(1, b'up\\n'); time.sleep(100)")
    processes = {name: hosts.start(name) for name in hosts.names}
    first = processes["algo-1"]
    assert first.stdout is not None
    for _ in range(4):
        assert "up" in first.stdout.readline()
    hosts.cut("algo-2")
    first.communicate(timeout=30)
    processes["algo-2"].communicate(timeout=10)
    assert first.returncode != 0
    assert "algo-2" in hosts.trees["algo-1"].failure


def test_stop_reaches_every_rank(hosts: Hosts) -> None:
    script = """
        import os, signal, sys, time
        def save(number, frame):
            path = os.path.join(os.environ["SM_MODEL_DIR"], "rank" + os.environ["OMPI_COMM_WORLD_RANK"])
            open(path, "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        os.makedirs(os.environ["SM_MODEL_DIR"], exist_ok=True)
        os.write(1, b"up\\n")
        while True:
            time.sleep(1)
    """
    for tree in hosts.trees.values():
        tree.script(script)
    processes = {name: hosts.start(name) for name in hosts.names}
    first = processes["algo-1"]
    assert first.stdout is not None
    for _ in range(4):
        assert "up" in first.stdout.readline()
    for process in processes.values():
        process.send_signal(signal.SIGTERM)
    for process in processes.values():
        process.communicate(timeout=30)
    for name, ranks in {"algo-1": ["rank0", "rank1"], "algo-2": ["rank2", "rank3"]}.items():
        assert sorted(os.listdir(hosts.trees[name].base / "model")) == ranks
        assert hosts.trees[name].report["outcome"] == "stopped"


@pytest.mark.parametrize("bad", ["algo-1", "algo-2"])
def test_a_host_that_cannot_get_ready_fails_all_at_once(hosts: Hosts, bad: str) -> None:
    (hosts.trees[bad].base / "code/train.py").unlink()
    results = hosts.run(timeout=25)
    assert [code for code, _, _ in results.values()] == [1, 1], results
    for tree in hosts.trees.values():
        assert "is not in the code directory" in tree.failure
