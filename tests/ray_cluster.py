"""A real Ray for tests: a head and a worker, each a host with its own network, processes and name.

`shared_cluster` is one Ray for all workers of a test run. Tests that break something start their own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests import backends
from tests.cluster_hosts import PATH, Cluster, adopt, keep, shared_root, started, wait_until

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


#: An autoscaler that may add nodes of 8 CPUs, as processes on the head. Ray ships that for tests.
_AUTOSCALING = """\
cluster_name: grows
max_workers: 2
provider:
  type: fake_multinode
  use_node_id_as_ip: true
  disable_node_updaters: true
  disable_launch_config_check: true
available_node_types:
  ray.head.default: {resources: {CPU: 2}, node_config: {}, max_workers: 0}
  large: {resources: {CPU: 8}, node_config: {}, min_workers: 0, max_workers: 2}
head_node_type: ray.head.default
upscaling_speed: 1.0
idle_timeout_minutes: 5
file_mounts_sync_continuously: false
""" + "".join(
    f"{name}: {empty}\n"  # what Ray's launcher fills in, and the head needs
    for empty, names in {
        "{}": "auth docker file_mounts",
        "[]": "cluster_synced_files rsync_exclude rsync_filter initialization_commands setup_commands "
        "head_setup_commands worker_setup_commands head_start_ray_commands worker_start_ray_commands",
    }.items()
    for name in names.split()
)


class RayCluster(Cluster):
    """A running Ray of two nodes. Use as a context manager.

    Args:
        root: an empty directory for it, with a short path: it holds sockets.
        token: what must be sent with each request; "" if nothing is asked for.
        grows: whether it is a head alone, with an autoscaler that may add nodes.
        oldest: whether it is a head alone of the oldest release that is supported.
    """

    def __init__(self, root: Path, token: str = "", *, grows: bool = False, oldest: bool = False) -> None:
        super().__init__(root, _ADDRESSES)
        self.token = token
        self.grows = grows
        self.oldest = oldest

    @property
    def address(self) -> str:
        """The dashboard's URL."""
        return f"http://{self.net}.{_ADDRESSES[HEAD]}:8265"

    def start(self) -> None:
        """Start the head, then the worker.

        An autoscaler starts its nodes itself; the oldest Ray cannot have two nodes below one directory.
        """
        self.start_head()
        if not self.grows and not self.oldest:
            self.start_worker()

    # ---- what tests do with it

    def start_head(self) -> None:
        """Start the head, and wait for its dashboard."""
        here = f"{self.net}.{_ADDRESSES[HEAD]}"
        options = ["--head", "--port=6379", f"--dashboard-host={here}", "--include-dashboard=true"]
        if self.grows:
            (self.root / "autoscaling.yaml").write_text(_AUTOSCALING)
            options.append(f"--autoscaling-config={self.root}/autoscaling.yaml")
        self._start(HEAD, *options)
        wait_until(self._answers, "Ray's dashboard is up", self.logs)

    def start_worker(self) -> None:
        """Start the worker, and wait until the head knows it."""
        self._start(WORKER, f"--address={self.net}.{_ADDRESSES[HEAD]}:6379")
        wait_until(lambda: self._nodes() >= 2, "the worker has joined", self.logs)

    # ---- parts

    def _start(self, name: str, *options: str) -> None:
        host = self.add_host(name)
        host.network("route", "add", "default", "via", f"{self.net}.1")
        ray = backends.ray(oldest=self.oldest)
        own = {
            "PATH": f"{os.path.dirname(ray)}:{os.path.dirname(sys.executable)}:{PATH}",
            "HOME": str(self.root / "run"),
            "TMPDIR": str(self.root / "tmp"),
            "RAY_AUTH_MODE": "token" if self.token else "disabled",
        }
        (self.root / "tmp").mkdir(exist_ok=True)
        if self.token:
            own["RAY_AUTH_TOKEN"] = self.token
        if self.grows:
            own["RAY_FAKE_CLUSTER"] = "1"
        self.daemons[name] = host.start(
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


def private_cluster(token: str = "", **kind: bool) -> contextlib.AbstractContextManager[RayCluster]:
    """Start a Ray that a test may break; ``kind`` is that of `RayCluster`."""
    return started(lambda root: RayCluster(root, token, **kind), "ty-ray-")


def shared_cluster(factory: pytest.TempPathFactory, *, token: bool = False) -> RayCluster:
    """Return the Ray that all workers of this test run share, with a token or without one."""
    words = ["secret"] if token else []
    root = shared_root(factory, "tests.ray_cluster", *words, SHUNTER_RAY=backends.RAY)
    return adopt(RayCluster(Path(), *words), root)


if __name__ == "__main__":
    keep(private_cluster)
