"""Open MPI over sshd on two hosts, for real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from shunter_toolkit import mpi
from shunter_toolkit.ssh import Keys

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
open(f"{os.environ['SM_MODEL_DIR']}/rank-{rank}", "w").close()
"""


def require_mpi() -> None:
    sshd = os.access("/usr/sbin/sshd", os.X_OK)
    backend(
        "mpi",
        bool(shutil.which("mpirun")) and sshd,
        "mpirun and sshd are needed (openmpi-bin, openssh-server)",
    )
    require_hosts("mpi")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    require_mpi()
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
    results = hosts.run()
    assert [code for code, _, _ in results.values()] == [0, 0], results
    out = results["algo-1"][1]
    for rank, host in enumerate(["algo-1", "algo-1", "algo-2", "algo-2"]):
        base = hosts.trees[host].base
        line = f"rank {rank} of 4 on {host} {base}/model {base}/code ['--note', \"it's $HOME\"]"
        assert f"[1,{rank}]<stdout>:{line}" in out
        assert (base / f"model/rank-{rank}").exists()
    assert all(tree.succeeded for tree in hosts.trees.values())
    assert os.listdir(hosts.keys) == []  # no key outlives its job
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


@pytest.mark.slow
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
    process = hosts.start("algo-1", SHUNTER_HOST_WAIT_SECONDS="1")
    process.communicate(timeout=20)
    assert process.returncode == 1
    assert "did not join within 1 s: algo-2" in hosts.trees["algo-1"].failure


@pytest.mark.slow
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


@pytest.mark.slow
def test_every_rank_saves_its_state_though_others_end_at_once(hosts: Hosts) -> None:
    script = """
        import os, signal, sys, time
        def save(number, frame):
            note("saving")
            time.sleep(rank)
            note("saved")
            sys.exit(3)
        def note(word):
            with open(os.environ["SM_MODEL_DIR"] + f"/rank{rank}", "a") as file:
                file.write(word + " ")
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        if rank % 2:
            signal.signal(signal.SIGTERM, save)
        os.makedirs(os.environ["SM_MODEL_DIR"], exist_ok=True)
        os.write(1, b"up\\n")
        while True:
            time.sleep(1)
    """
    for tree in hosts.trees.values():
        tree.script(script)
    processes = {name: hosts.start(name, SHUNTER_GRACE_SECONDS="100") for name in hosts.names}
    first = processes["algo-1"]
    assert first.stdout is not None
    for _ in range(4):
        assert "up" in first.stdout.readline()
    for process in processes.values():
        process.send_signal(signal.SIGTERM)
    for process in processes.values():
        process.communicate(timeout=60)
    for name, rank in (("algo-1", 1), ("algo-2", 3)):
        assert (hosts.trees[name].base / f"model/rank{rank}").read_text() == "saving saved "
        assert hosts.trees[name].report["outcome"] == "stopped"


@pytest.mark.parametrize("bad", ["algo-1", "algo-2"])
def test_a_host_that_cannot_get_ready_fails_all_at_once(hosts: Hosts, bad: str) -> None:
    (hosts.trees[bad].base / "code/train.py").unlink()
    results = hosts.run(timeout=25)
    assert [code for code, _, _ in results.values()] == [1, 1], results
    for tree in hosts.trees.values():
        assert "is not in the code directory" in tree.failure


@pytest.fixture
def groups(hosts_of_three: Hosts) -> Hosts:
    """Two instance groups: MPI on the machines with GPUs, plain preparation of data beside them."""
    layout = {"gpu": ["algo-1", "algo-3"], "data": ["algo-2"]}
    entries = [
        {"instance_group_name": group, "instance_type": f"ml.{group}", "hosts": hosts}
        for group, hosts in layout.items()
    ]
    for name, tree in hosts_of_three.trees.items():
        own = next(group for group, members in layout.items() if name in members)
        tree.configure(
            "resourceconfig",
            {
                "current_host": name,
                "hosts": hosts_of_three.names,
                "network_interface_name": "eth0",
                "current_group_name": own,
                "current_instance_type": f"ml.{own}",
                "instance_groups": entries,
            },
        )
    return hosts_of_three


@pytest.fixture
def hosts_of_three(tmp_path: Path) -> Iterator[Hosts]:
    require_mpi()
    with Hosts(tmp_path, ["algo-1", "algo-2", "algo-3"]) as made:
        yield made


def ask_for_mpi(hosts: Hosts, groups: list[str], script: str) -> None:
    for tree in hosts.trees.values():
        tree.script(script)
        tree.hyperparameters(
            sagemaker_mpi_enabled="true",
            sagemaker_mpi_num_of_processes_per_host="1",
            sagemaker_distribution_instance_groups=json.dumps(groups),
        )


MIXED = """
import os
rank, size = (os.environ.get(f"OMPI_COMM_WORLD_{name}", "none") for name in ("RANK", "SIZE"))
shown = (os.environ[f"SM_CURRENT_{name}"] for name in ("HOST", "INSTANCE_GROUP", "INSTANCE_TYPE"))
os.write(1, f"rank {rank} of {size} on {' '.join(shown)}\\n".encode())
"""


@pytest.mark.slow
def test_mpi_on_one_of_two_groups(groups: Hosts) -> None:
    ask_for_mpi(groups, ["gpu"], MIXED)
    results = groups.run()
    assert [code for code, _, _ in results.values()] == [0, 0, 0], results
    assert "[1,0]<stdout>:rank 0 of 2 on algo-1 gpu ml.gpu" in results["algo-1"][1]
    assert "[1,1]<stdout>:rank 1 of 2 on algo-3 gpu ml.gpu" in results["algo-1"][1]
    assert results["algo-2"][1] == "rank none of none on algo-2 data ml.data\n"
    assert all(tree.succeeded for tree in groups.trees.values())


@pytest.mark.slow
def test_a_failing_rank_fails_its_group_and_leaves_the_other_alone(groups: Hosts) -> None:
    script = """
        import os, time
        if os.environ.get("OMPI_COMM_WORLD_RANK") == "1":
            raise ValueError("rank is unwell")
        time.sleep(40 if "OMPI_COMM_WORLD_RANK" in os.environ else 0)
    """
    ask_for_mpi(groups, ["gpu"], script)
    results = groups.run()
    assert {name: code for name, (code, _, _) in results.items()} == {"algo-1": 1, "algo-2": 0, "algo-3": 1}
    report = groups.trees["algo-1"].report
    assert (report["exception"], report["rank"], report["host"]) == ("ValueError", 1, "algo-3")
    assert "ValueError: rank is unwell" in groups.trees["algo-3"].failure.splitlines()[0]
    assert groups.trees["algo-2"].succeeded
    assert groups.pids("algo-1") == groups.pids("algo-3") == []


@pytest.mark.slow
def test_mpi_over_two_groups(groups: Hosts) -> None:
    """Ranks are dealt in the order of the groups asked for; one that fails in either fails all hosts."""
    ask_for_mpi(groups, ["data", "gpu"], MIXED)
    results = groups.run()
    assert [code for code, _, _ in results.values()] == [0, 0, 0], results
    for rank, where in enumerate(["algo-2 data ml.data", "algo-1 gpu ml.gpu", "algo-3 gpu ml.gpu"]):
        assert f"[1,{rank}]<stdout>:rank {rank} of 3 on {where}" in results["algo-2"][1]
    failing = (
        "import os, time\nif os.environ['SM_CURRENT_HOST'] == 'algo-3': raise SystemExit(5)\ntime.sleep(40)"
    )
    ask_for_mpi(groups, ["data", "gpu"], failing)
    results = groups.run()
    assert [code for code, _, _ in results.values()] == [5, 5, 5], results


@pytest.mark.slow
def test_a_killed_train_takes_the_ranks_along_and_the_next_job_clears_its_keys(hosts: Hosts) -> None:
    for tree in hosts.trees.values():
        tree.script("import os, time; os.write(1, b'up\\n'); time.sleep(100)")
    processes = {name: hosts.start(name) for name in hosts.names}
    first = processes["algo-1"]
    assert first.stdout is not None
    for _ in range(4):
        assert "up" in first.stdout.readline()
    for process in processes.values():
        process.kill()
    for process in processes.values():
        process.communicate(timeout=20)  # its pipes close when the last process that holds them has ended
    while hosts.pids("algo-1") or hosts.pids("algo-2"):
        time.sleep(0.05)  # the test's own time limit ends this
    assert len(os.listdir(hosts.keys)) == 2
    for tree in hosts.trees.values():
        tree.script(SCRIPT)
    results = hosts.run()
    assert [code for code, _, _ in results.values()] == [0, 0], results
    assert os.listdir(hosts.keys) == []


def test_keys_of_a_job_that_lives_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs on one machine, in processes of their own; then a folder whose job is gone, and a link."""
    monkeypatch.setenv("SHUNTER_KEY_DIR", str(tmp_path))
    code = (
        "import sys\nfrom shunter_toolkit.ssh import Keys\n"
        "keys = Keys()\nkeys.write('id', 'x')\nprint(keys.folder, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        folder = other.stdout.readline().strip()
        ours = Keys()
        assert os.listdir(folder) == ["id"]
        other.kill()
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").touch()
    (tmp_path / "shunter-keys-link").symlink_to(target)
    Keys().remove()
    assert not os.path.exists(folder)
    assert os.path.isdir(ours.folder)
    assert (target / "file").exists()
    ours.remove()
    assert sorted(os.listdir(tmp_path)) == ["shunter-keys-link", "target"]


@pytest.mark.parametrize(
    ("own", "peer", "hosts"),
    [
        ("10.0.0.1", "10.0.0.2", ["10.0.0.1", "10.0.0.2"]),
        ("127.128.0.1", "127.128.0.2", ["localhost", "127.128.0.2"]),
    ],
)
def test_mpirun_knows_itself_by_a_name_that_it_accepts(
    monkeypatch: pytest.MonkeyPatch, own: str, peer: str, hosts: list[str]
) -> None:
    """Containers on the machine's network have loopback addresses, and mpirun there is localhost."""
    line = SimpleNamespace(addresses=lambda: (own, peer))
    chief = SimpleNamespace(lines={"algo-2": line}, hellos={"algo-2": {"port": 1, "host_key": "k"}})
    launch = SimpleNamespace(environment=SimpleNamespace(distribution_hosts=["algo-1", "algo-2"]))
    written: list[str] = []
    keys = SimpleNamespace(write=lambda name, text: written.append(text) or name)
    monkeypatch.setattr(mpi.launching, "processes_per_host", lambda environment, kind: 3)
    monkeypatch.setattr(mpi.ssh, "client_config", lambda keys, reach: "config")
    monkeypatch.setattr(mpi, "command", lambda launch, major, everyone, *rest: everyone)
    assert mpi._line_over_ssh(launch, keys, 4, "mpi", chief) == hosts
    assert written == ["".join(f"{host} slots=3\n" for host in hosts)]
