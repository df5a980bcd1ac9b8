"""Hosts made of network namespaces: each has its own address, loopback and name resolution."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

from .conftest import Tree, backend


def require_hosts(name: str) -> None:
    """Skip where namespaces cannot be made."""
    usable = os.geteuid() == 0 and shutil.which("ip") is not None
    if usable:
        probe = f"ty{uuid.uuid4().hex[:6]}"
        usable = (
            subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode == 0
        )
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    backend(name, usable, "network namespaces cannot be made here (root and iproute2 are needed)")


class Hosts:
    """A bridge, and one namespace per host on it. Use as a context manager."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = folder
        self.names = names
        self.tag = f"ty{uuid.uuid4().hex[:6]}"
        self.net = f"10.{os.getpid() % 200 + 20}.{uuid.uuid4().int % 250}"
        self.trees: dict[str, Tree] = {}
        self.env: dict[str, str] = {}

    def __enter__(self) -> Hosts:
        self.keys = tempfile.mkdtemp(prefix="ty", dir="/dev/shm")
        self._ip("link", "add", self.tag, "type", "bridge")
        self._ip("link", "set", self.tag, "up")
        self._forward("-I")
        table = "".join(f"{self.net}.{i + 11} {name}\n" for i, name in enumerate(self.names))
        for i, name in enumerate(self.names):
            space = self._space(name)
            self._ip("netns", "add", space)
            inner, outer = "eth0", f"{self.tag}{i}"
            self._ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
            self._ip("link", "set", outer, "master", self.tag, "up")
            self._ip("-n", space, "addr", "add", f"{self.net}.{i + 11}/24", "dev", inner)
            self._ip("-n", space, "link", "set", inner, "up")
            self._ip("-n", space, "link", "set", "lo", "up")
            etc = Path(f"/etc/netns/{space}")
            etc.mkdir(parents=True)
            (etc / "hosts").write_text(f"127.0.0.1 localhost\n{table}")
            self.trees[name] = self._tree(name)
        return self

    def _tree(self, name: str) -> Tree:
        tree = Tree(self.folder / name)
        tree.configure(
            "resourceconfig",
            {
                "current_host": name,
                "hosts": self.names,
                "network_interface_name": "eth0",
                "current_group_name": "homogeneousCluster",
                "current_instance_type": "local",
            },
        )
        return tree

    def start(self, name: str, **env: str) -> subprocess.Popen[str]:
        """Run ``train`` on a host."""
        tree = self.trees[name]
        quick = {
            "SHUNTER_KEY_DIR": self.keys,
            "SHUNTER_HOST_WAIT_SECONDS": "30",
            "SHUNTER_GRACE_SECONDS": "5",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            ["ip", "netns", "exec", self._space(name), *tree.command()],
            env=tree.env(**{**quick, **env}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, timeout: float = 110, **env: str) -> dict[str, tuple[int, str, str]]:
        """Run ``train`` on all hosts; exit code, stdout and stderr of each."""
        started = {name: self.start(name, **env) for name in self.names}
        results = {}
        try:
            for name, process in started.items():
                out, err = process.communicate(timeout=timeout)
                results[name] = (process.returncode, out, err)
        finally:
            for process in started.values():
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        return results

    def pids(self, name: str) -> list[int]:
        """What still runs on a host."""
        out = self._ip("netns", "pids", self._space(name))
        return [int(word) for word in out.split()]

    def cut(self, name: str) -> None:
        """Kill everything on a host, as a machine that is lost."""
        for pid in self.pids(name):
            with contextlib.suppress(ProcessLookupError):  # it ended with one that was killed before it
                os.kill(pid, 9)

    def __exit__(self, *exc: object) -> None:
        for name in self.names:
            self.cut(name)
            self._ip("netns", "del", self._space(name))
            shutil.rmtree(f"/etc/netns/{self._space(name)}")
        shutil.rmtree(self.keys)
        self._forward("-D")
        self._ip("link", "del", self.tag)

    def _space(self, name: str) -> str:
        return f"{self.tag}-{name}"

    def _ip(self, *words: str) -> str:
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout

    def _forward(self, action: str) -> None:
        """Let the bridge's own traffic through where a Docker daemon has closed forwarding."""
        if shutil.which("iptables"):
            rule = ["iptables", "-w", action, "FORWARD", "-i", self.tag, "-o", self.tag, "-j", "ACCEPT"]
            subprocess.run(rule, capture_output=True, check=False)
