"""Hosts of a cluster for tests: each with its own network, processes and name, and this machine's files.

A host is a process in namespaces (network, PID, UTS, mount), so killing that process is pulling the plug: the
kernel ends everything on the host with it. The hosts hang on a bridge in a separate namespace, which one
link joins to this machine. Everything ends with the process that started it, however that ends, and the
network ends with its namespaces: nothing is left to clean up.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
                preexec_fn=_die_with_parent,
            )
        wait_until(ready.exists, f"{name} is up")
        self.pid = _children(self._outer.pid)[0]  # of the host's first process, as this machine sees it

    def start(self, *command: str, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Start a program on the host."""
        with log.open("ab") as output:
            return subprocess.Popen(
                ["nsenter", "-t", str(self.pid), "-n", "-u", "-m", "-p", *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def network(self, *command: str) -> None:
        """Run ``ip`` in the host's network."""
        subprocess.run(["nsenter", "-t", str(self.pid), "-n", "ip", *command], env={"PATH": PATH}, check=True)

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
        with open(os.path.join(tempfile.gettempdir(), "trainyard-tests-networks.lock"), "a") as lock:
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
        self.network(
            "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", str(host.pid)
        )
        self.network("link", "set", f"to-{name}", "master", "bridge0", "up")
        host.network("addr", "add", f"{self.net}.{last}/24", "dev", "eth0")
        host.network("link", "set", "eth0", "up")
        host.network("route", "add", "default", "via", f"{self.net}.1")
        return host


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _die_with_parent() -> None:
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
