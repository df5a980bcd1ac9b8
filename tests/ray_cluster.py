"""A real Ray for tests: a head and a worker, each a host with its own network, processes and name.

`shared_cluster` is one Ray for all workers of a test run. Tests that break something start their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import backends
from tests.cluster_hosts import PATH, PATIENCE, Host, Switch, wait_until

HEAD, WORKER = "head", "worker"
_ADDRESSES = {HEAD: 11, WORKER: 12}
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_health_check_initial_delay_ms": "1000",  # a node that was killed is found to be gone in seconds
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_raylet_start_wait_time_s": "120",
    "LANG": "C.UTF-8",
}


class RayCluster:
    """A running Ray of two nodes. Use as a context manager.

    Args:
        root: an empty directory for it, with a short path: it holds sockets.
        token: what must be sent with each request; "" if nothing is asked for.
    """

    def __init__(self, root: Path, token: str = "") -> None:
        self.root = root
        self.token = token
        self.net = ""
        self._switch: Switch | None = None
        self._hosts: dict[str, Host] = {}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """The dashboard's URL."""
        return f"http://{self.net}.{_ADDRESSES[HEAD]}:8265"

    def __enter__(self) -> RayCluster:
        try:
            self._switch = Switch(self.root)
            self.net = self._switch.net
            names = "".join(f"{self.net}.{last} {name}\n" for name, last in _ADDRESSES.items())
            (self.root / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
            self.start_head()
            self.start_worker()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End everything."""
        for host in (*self._hosts.values(), *([self._switch] if self._switch else [])):
            host.kill()
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        self._hosts.clear()
        self._daemons.clear()

    # ---- what tests do with it

    def start_head(self) -> None:
        """Start the head, and wait for its dashboard."""
        here = f"{self.net}.{_ADDRESSES[HEAD]}"
        self._start(HEAD, "--head", "--port=6379", f"--dashboard-host={here}", "--include-dashboard=true")
        wait_until(self._answers, "Ray's dashboard is up", self.logs)

    def start_worker(self) -> None:
        """Start the worker, and wait until the head knows it."""
        self._start(WORKER, f"--address={self.net}.{_ADDRESSES[HEAD]}:6379")
        wait_until(lambda: self._nodes() >= 2, "the worker has joined", self.logs)

    def kill(self, name: str) -> None:
        """Pull a node's plug."""
        self._hosts.pop(name).kill()
        self._daemons.pop(name).wait()

    def freeze(self, name: str) -> None:
        """Unplug a node's network."""
        self._hosts[name].network("link", "set", "eth0", "down")

    def thaw(self, name: str) -> None:
        """Plug a node's network in again."""
        self._hosts[name].network("link", "set", "eth0", "up")

    def logs(self) -> str:
        """Return the ends of the daemons' logs, for messages."""
        return "".join(
            f"\n--- {path.name}\n" + path.read_text(errors="replace")[-2000:]
            for path in sorted((self.root / "log").iterdir())
        )

    # ---- parts

    def _start(self, name: str, *options: str) -> None:
        assert self._switch is not None
        host = self._hosts[name] = self._switch.add_host(name, _ADDRESSES[name])
        ray = backends.ray()
        own = {
            "PATH": f"{os.path.dirname(ray)}:{os.path.dirname(sys.executable)}:{PATH}",
            "HOME": str(self.root / "run"),
            "TMPDIR": str(self.root / "tmp"),
            "RAY_AUTH_MODE": "token" if self.token else "disabled",
        }
        (self.root / "tmp").mkdir(exist_ok=True)
        if self.token:
            own["RAY_AUTH_TOKEN"] = self.token
        self._daemons[name] = host.start(
            *(
                ray,
                "start",
                "--block",
                "--disable-usage-stats",
                "--num-cpus=2",
                "--object-store-memory=100000000",
            ),
            *(f"--node-ip-address={self.net}.{_ADDRESSES[name]}", f"--temp-dir={self.root}/{name}"),
            *options,
            environment={**_ENVIRONMENT, **own},
            log=self.root / "log" / f"{name}.out",
        )

    def _get(self, path: str) -> bytes:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(self.address + path, headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            content: bytes = answer.read()
            return content

    def _answers(self) -> bool:
        try:
            self._get("/api/version")
        except (OSError, urllib.error.URLError):
            return False
        return True

    def _nodes(self) -> int:
        try:
            return self._get("/api/v0/nodes").count(b'"ALIVE"')
        except (OSError, urllib.error.URLError):
            return 0


# ---- one for all workers of a test run


def run_directory(factory: pytest.TempPathFactory) -> Path:
    """Return a directory that all workers of this test run share."""
    base = factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


def shared_cluster(directory: Path, *, token: bool = False) -> RayCluster:
    """Return the Ray that all workers of this test run share; the first that asks starts it.

    Args:
        directory: of the run, the same for all its workers.
        token: whether it asks for a token; there is one of each kind.
    """
    place = directory / ("ray-token" if token else "ray")
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "ready").exists():
            run = (os.environ.get("PYTEST_XDIST_WORKER") and os.getppid()) or os.getpid()
            command = [
                sys.executable,
                "-m",
                "tests.ray_cluster",
                str(place),
                str(run),
                "secret" if token else "",
            ]
            log = place / "keeper.out"
            with log.open("wb") as output:
                keeper = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
            wait_until(
                lambda: (place / "ready").exists() or keeper.poll() is not None,
                "the shared Ray is up",
                log.read_text,
                patience=2 * PATIENCE,
            )
            assert keeper.poll() is None, log.read_text()
            _keepers.append(keeper)
    root, net = (place / "ready").read_text().split(" ")
    cluster = RayCluster(Path(root), f"{'secret' if token else ''}")
    cluster.net = net
    return cluster


#: Kept, so that nobody warns of processes that were not waited for.
_keepers: list[subprocess.Popen[bytes]] = []


@contextlib.contextmanager
def private_cluster(token: str = "") -> Iterator[RayCluster]:
    """Start a Ray that a test may break."""
    root = Path(tempfile.mkdtemp(prefix="ty-ray-", dir="/tmp"))
    try:
        with RayCluster(root, token) as cluster:
            yield cluster
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _keep(place: Path, run: int, token: str) -> None:
    """Run a cluster until the process ``run`` ends."""
    import select

    with contextlib.suppress(ProcessLookupError):
        end = os.pidfd_open(run)
        with private_cluster(token) as cluster:
            (place / "ready.new").write_text(f"{cluster.root} {cluster.net}")
            (place / "ready.new").rename(place / "ready")
            select.select([end], [], [])
    shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
