"""Several hosts end alike: the coordination alone, with a stand-in for torchrun that just runs the script."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .hosts import Hosts, require_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = """
import os, sys
os.environ["TORCHRUN_LINE"] = " ".join(sys.argv[1:])
words = sys.argv[1:]
while words and words[0].startswith("--"):
    words = words[1:] if words[0] == "--standalone" else words[2:]
os.execv(sys.executable, [sys.executable, *words])
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    require_hosts("netns")
    package = tmp_path / "fake/torch/distributed"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py"):
        path.write_text("")
    (package / "run.py").write_text(RUN)
    with Hosts(tmp_path, ["algo-1", "algo-2", "algo-3"]) as made:
        made.env = {"PYTHONPATH": str(tmp_path / "fake")}
        for tree in made.trees.values():
            tree.hyperparameters(sagemaker_torch_distributed_enabled="true")
        yield made


def scripts(hosts: Hosts, others: str, **by_name: str) -> None:
    for name, tree in hosts.trees.items():
        tree.script(by_name.get(name.replace("-", "_"), others))


def test_all_succeed_though_at_different_times(hosts: Hosts) -> None:
    scripts(hosts, "pass", algo_2="import time; time.sleep(1)")
    results = hosts.run(**hosts.env)
    assert [code for code, _, _ in results.values()] == [0, 0, 0], results


@pytest.mark.parametrize("bad", ["algo-1", "algo-3"])
def test_one_failure_ends_all_at_once(hosts: Hosts, bad: str) -> None:
    waiting = "import time; time.sleep(100)"
    failing = "raise KeyError('no such column')"
    scripts(hosts, waiting, **{bad.replace("-", "_"): failing})
    results = hosts.run(timeout=30, **hosts.env)
    assert [code for code, _, _ in results.values()] == [1, 1, 1], results
    for name, tree in hosts.trees.items():
        assert "KeyError: 'no such column'" in tree.failure.splitlines()[0], name
        assert tree.report["class"] == "user_error"
        assert tree.failure.startswith(f"Host {bad} failed") or name == bad


@pytest.mark.parametrize("lost", ["algo-1", "algo-2"])
def test_a_lost_host_ends_all(hosts: Hosts, lost: str) -> None:
    scripts(hosts, "import os, time; os.write(1, b'up\\n'); time.sleep(100)")
    processes = {name: hosts.start(name, **hosts.env) for name in hosts.names}
    for process in processes.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
    hosts.cut(lost)
    for name, process in processes.items():
        process.communicate(timeout=20)
        if name != lost:
            assert process.returncode == 1
            assert f"the connection to host {lost} was lost" in hosts.trees[name].failure


def test_a_stop_of_one_host_stops_all(hosts: Hosts) -> None:
    script = """
        import os, signal, sys, time
        def save(number, frame):
            open(os.environ["SM_MODEL_DIR"] + "/saved", "w").close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        os.write(1, b"up\\n")
        while True:
            time.sleep(1)
    """
    scripts(hosts, script)
    processes = {name: hosts.start(name, **hosts.env) for name in hosts.names}
    for process in processes.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
    processes["algo-1"].send_signal(signal.SIGTERM)
    for name, process in processes.items():
        process.communicate(timeout=20)
        assert os.path.exists(hosts.trees[name].base / "model/saved")
        assert hosts.trees[name].report["outcome"] == "stopped", name


@pytest.mark.parametrize("bad", ["algo-1", "algo-2"])
def test_a_host_that_cannot_get_ready_fails_all_at_once(hosts: Hosts, bad: str) -> None:
    scripts(hosts, "import time; time.sleep(100)")
    (hosts.trees[bad].base / "code/train.py").unlink()
    results = hosts.run(timeout=25, **hosts.env)
    assert [code for code, _, _ in results.values()] == [1, 1, 1], results
    for tree in hosts.trees.values():
        assert "is not in the code directory" in tree.failure.splitlines()[0]
        assert tree.report["class"] == "client_error"


def test_ports_can_be_chosen(hosts: Hosts) -> None:
    """The hosts meet on one, torchrun is given the other."""
    seen = """
        import os
        tables = [open(f"/proc/net/{name}").read().splitlines()[1:] for name in ("tcp", "tcp6")]
        rows = [line.split() for table in tables for line in table]
        ports = sorted({int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"})
        print(ports, os.environ["TORCHRUN_LINE"])
    """
    scripts(hosts, seen)
    ports = {"SHUNTER_RENDEZVOUS_PORT": "8123", "SHUNTER_MASTER_PORT": "8456"}
    results = hosts.run(**ports, **hosts.env)
    for i, (name, (code, out, err)) in enumerate(results.items()):
        assert code == 0, err
        assert out.startswith("[8123] --nnodes 3 " if i == 0 else "[] --nnodes 3 "), name
        assert f"--master_addr algo-1 --master_port 8456 --node_rank {i} " in out


def test_hosts_learn_each_others_names_where_no_platform_gives_them(tmp_path: Path) -> None:
    """A plain job, whose hosts nothing else brings together."""
    require_hosts("netns")
    script = """
        import os, socket, time
        me = os.environ["SM_CURRENT_HOST"]
        addresses = {host: socket.gethostbyname(host) for host in ("algo-1", "algo-2")}
        assert not any(address.startswith("127.") for address in addresses.values()), addresses
        server = socket.create_server((me, 29501))
        other = "algo-2" if me == "algo-1" else "algo-1"
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection((other, 29501), 20).close()
            except OSError:
                assert time.monotonic() < deadline
            else:
                break
        server.accept()
    """
    with Hosts(tmp_path, ["algo-1", "algo-2"]) as hosts:
        first = ""
        for name, tree in hosts.trees.items():
            names = Path(f"/etc/netns/{hosts.tag}-{name}/hosts")
            first = first or names.read_text().split("\n")[1].split()[0]
            names.write_text("127.0.0.1 localhost\n")
            tree.script(script)
        started = []
        for name in hosts.names:
            job = {"program": "train.py", "host_count": 2, "current_host": name}
            address = "localhost" if name == "algo-1" else first
            started.append(hosts.start(name, SHUNTER_JOB=json.dumps(job), TORCHX_RANK0_HOST=address))
        for process in started:
            _, err = process.communicate(timeout=50)
            assert process.returncode == 0, err
        assert hosts.pids("algo-1") == hosts.pids("algo-2") == []
