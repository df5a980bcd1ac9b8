"""Hosts of a cluster for tests: each with its own network, processes and name, and this machine's files.

A host is a process in namespaces (network, PID, UTS, mount), so killing that process is pulling the plug: the
kernel ends everything on the host with it. The hosts hang on a bridge in a separate namespace, which one
link joins to this machine. Everything ends with the process that started it, however that ends, and the
network ends with its namespaces: nothing is left to clean up.

`Cluster` is what the real Slurm, Grid Engine and Ray of the tests have in common. A cluster that all workers
of a test run share is kept by a process (`shared_root`, `keep`); tests that break something start their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

#: Seconds that a part may take to come up on a busy machine.
PATIENCE = 120
PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


class Host:
    """A process in its own namespaces. Its first process there is a shell that waits for its end."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        for part in ("run", "log"):
            (root / part).mkdir(parents=True, exist_ok=True)
        ready = root / "run" / f"{name}.ready"
        ready.unlink(missing_ok=True)
        script = (
            f"hostname {name}; mount --bind {root}/hosts /etc/hosts; ip link set lo up; "
            f"echo > {ready}; exec sleep infinity"
        )
        command = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (root / "log" / f"{name}.host").open("ab") as log:
            self._outer = subprocess.Popen(
                [*command, "sh", "-c", script],
                env={**os.environ, "PATH": PATH},
                stdin=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        wait_until(ready.exists, f"{name} is up")
        self.pid = children(self._outer.pid)[0]  # of the host's first process, as this machine sees it
        (root / "run" / f"{name}.pid").write_text(str(self.pid))

    def start(self, *command: str, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Start a program on the host."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [*entering(self.pid), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def network(self, *command: str) -> None:
        """Run ``ip`` in the host's network."""
        subprocess.run(
            ["nsenter", "-t", str(self.pid), "-n", "ip", *command],
            env={"PATH": PATH},
            capture_output=True,
            check=True,
        )

    def kill(self) -> None:
        """Pull the plug."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._outer.wait()


class Switch(Host):
    """A bridge that joins hosts with each other and with this machine.

    Args:
        root: a directory for the hosts' files.
    """

    def __init__(self, root: Path) -> None:
        (root / "hosts").write_text("127.0.0.1 localhost\n")
        super().__init__("switch", root)
        self.root = root
        self.network("link", "add", "name", "bridge0", "type", "bridge")
        self.network("link", "set", "bridge0", "up")
        #: The first three parts of the hosts' addresses; this machine's own ends with 1.
        self.net = self._join()

    def _join(self) -> str:
        """Link this machine to the switch with an address that nobody here has."""
        with open(os.path.join(tempfile.gettempdir(), "shunter-tests-networks.lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            answer = subprocess.run(
                ["ip", "-j", "-4", "route", "show", "table", "all"],
                env={"PATH": PATH},
                capture_output=True,
                check=True,
            )
            routes = json.loads(answer.stdout)
            taken = [ipaddress.ip_network(route["dst"]) for route in routes if "/" in route["dst"]]
            while True:
                net = f"10.{random.randrange(64, 255)}.{random.randrange(256)}"
                if not any(ipaddress.ip_network(f"{net}.0/24").overlaps(other) for other in taken):
                    break
            name = f"ty{self.pid:x}"
            link = ["link", "add", name, "type", "veth", "peer", "name", "to-us", "netns", str(self.pid)]
            for words in (link, ["addr", "add", f"{net}.1/24", "dev", name], ["link", "set", name, "up"]):
                subprocess.run(["ip", *words], env={"PATH": PATH}, check=True)
        self.network("link", "set", "to-us", "master", "bridge0", "up")
        return net

    def add_host(self, name: str, last: int) -> Host:
        """Make a host whose address ends with ``last``."""
        host = Host(name, self.root)
        with contextlib.suppress(subprocess.CalledProcessError):  # what a host that was killed has left
            self.network("link", "delete", f"to-{name}")
        self.network(
            "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(host.pid)
        )
        self.network("link", "set", f"to-{name}", "master", "bridge0", "up")
        # The same after a restart: for some seconds the others send to the one that they know.
        host.network("link", "set", "eth0", "address", f"02:00:00:00:00:{last:02x}")
        host.network("addr", "add", f"{self.net}.{last}/24", "dev", "eth0")
        host.network("link", "set", "eth0", "up")
        return host


class Cluster:
    """Hosts on a switch, and the daemons on them. Use as a context manager.

    Args:
        root: an empty directory for it, readable by the hosts (they see this machine's files).
        addresses: the names of its hosts, with the last part of their addresses.
    """

    def __init__(self, root: Path, addresses: dict[str, int]) -> None:
        self.root = root
        self.addresses = addresses
        #: The first three parts of the hosts' addresses; this machine's own ends with 1.
        self.net = ""
        self.switch: Switch | None = None
        self.hosts: dict[str, Host] = {}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start hosts and daemons; the switch is there. Subclasses fill this in."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        try:
            self.switch = Switch(self.root)
            self.net = self.switch.net
            names = "".join(f"{self.net}.{last} {name}\n" for name, last in self.addresses.items())
            (self.root / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End everything."""
        for host in (*self.hosts.values(), *([self.switch] if self.switch else [])):
            host.kill()
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()
        self.hosts.clear()
        self.daemons.clear()

    def add_host(self, name: str) -> Host:
        """Make a host, or plug in again one that was killed."""
        assert self.switch is not None
        host = self.hosts[name] = self.switch.add_host(name, self.addresses[name])
        return host

    def kill_node(self, name: str) -> None:
        """Pull a host's plug."""
        self.hosts.pop(name).kill()
        self.daemons.pop(name).wait()

    def end_daemon(self, name: str, number: int = signal.SIGTERM) -> None:
        """End a daemon by a signal, and wait for its end."""
        outer = self.daemons.pop(name)
        for daemon in children(outer.pid):  # of nsenter
            os.kill(daemon, number)
        outer.wait(PATIENCE)

    def cut_link(self, name: str) -> None:
        """Unplug a host's network."""
        self.hosts[name].network("link", "set", "eth0", "down")

    def mend_link(self, name: str) -> None:
        """Plug a host's network in again."""
        self.hosts[name].network("link", "set", "eth0", "up")

    def logs(self) -> str:
        """Return the ends of the daemons' logs, for messages."""
        return "".join(
            f"\n--- {path.name}\n" + path.read_text(errors="replace")[-2000:]
            for path in sorted((self.root / "log").iterdir())
        )


def entering(pid: int | str) -> list[str]:
    """Return what to put before a command to run it on the host with this first process."""
    return ["nsenter", "-t", str(pid), "-n", "-u", "-m", "-p"]


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def die_with_parent() -> None:
    """End with the process that starts this one, however that ends; for ``preexec_fn``."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def wait_until(
    condition: Callable[[], Any],
    what: str,
    detail: Callable[[], str] = lambda: "",
    patience: float = PATIENCE,
) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience} s: {what}{detail()}"
        time.sleep(0.02)


# ---- clusters of one test, and of a test run

C = TypeVar("C", bound=Cluster)


@contextlib.contextmanager
def started(make: Callable[[Path], C], prefix: str) -> Iterator[C]:
    """Start a cluster in a new directory, whose path is short since it holds sockets."""
    root = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    root.chmod(0o755)
    try:
        with make(root) as cluster:
            yield cluster
    finally:
        shutil.rmtree(root, ignore_errors=True)


def adopt(cluster: C, place: tuple[Path, str]) -> C:
    """Return a cluster that a keeper has started, for the use of its commands."""
    cluster.root, cluster.net = place
    return cluster


def shared_root(
    factory: pytest.TempPathFactory, module: str, *words: str, **environment: str
) -> tuple[Path, str]:
    """Return directory and network of a cluster of this test run; the first worker that asks starts it.

    Args:
        factory: pytest's; it knows the directory of the run.
        module: what `python -m` starts; it calls `keep`.
        words: which kind of cluster; there is one of each.
        environment: more variables for the keeper: tests have lost those of who started the run.
    """
    base = factory.getbasetemp()
    place = (base.parent if base.name.startswith("popen-") else base) / "-".join([module, *words])
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "ready").exists():
            run = os.getppid() if os.environ.get("PYTEST_XDIST_WORKER") else os.getpid()
            log = place / "keeper.out"
            with log.open("wb") as output:
                keeper = subprocess.Popen(
                    [sys.executable, "-m", module, str(place), str(run), *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    cwd=Path(__file__).parents[1],
                    env={**os.environ, **environment},
                )
            wait_until(
                lambda: (place / "ready").exists() or keeper.poll() is not None,
                f"{module} is up",
                log.read_text,
                patience=2 * PATIENCE,
            )
            assert keeper.poll() is None, log.read_text()
            _keepers.append(keeper)
    root, net = (place / "ready").read_text().split(" ")
    return Path(root), net


#: Kept, so that nobody warns of processes that were not waited for.
_keepers: list[subprocess.Popen[bytes]] = []


def keep(make: Callable[..., contextlib.AbstractContextManager[Cluster]]) -> None:
    """Run a cluster until its test run ends; the command line is what `shared_root` wrote.

    Args:
        make: starts the cluster, given the words of its kind.
    """
    place = Path(sys.argv[1])
    with contextlib.suppress(ProcessLookupError):
        end = os.pidfd_open(int(sys.argv[2]))
        with make(*sys.argv[3:]) as cluster:
            (place / "ready.new").write_text(f"{cluster.root} {cluster.net}")
            (place / "ready.new").rename(place / "ready")
            select.select([end], [], [])
    shutil.rmtree(place, ignore_errors=True)
