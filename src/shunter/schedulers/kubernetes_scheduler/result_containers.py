"""Containers beside the program's, whose logs take results that are too large for the program's own log.

Pods keep no files, but the kubelet keeps their logs as long as the pod, and rotates each at 10 MiB. So at its
end the toolkit writes the results as lines into several files of a directory that the containers share. They
are sidecars: the kubelet stops them when the program has ended, and then each prints its file.
https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shunter._toolkit.logged_results import FILE_BYTES, FILES, MOST_BYTES
from shunter.backoff import Backoff
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.api_server import KubernetesError
from shunter.schedulers.kubernetes_scheduler.code_objects import helper
from shunter.schedulers.kubernetes_scheduler.jobs import ClusterJob, core_path, group_pods
from shunter.schedulers.kubernetes_scheduler.names import inner

_NAME, _FOLDER = "shunter-results", "/opt/shunter-results"
_PRINT = 'trap "cat $1 2>/dev/null; exit 0" TERM; while :; do sleep 3600 & wait $!; done'
_SIZES = {"cpu": "10m", "memory": "32Mi"}
#: Seconds without a byte after which a log is read again, and how often it is tried.
_SILENCE, _ATTEMPTS = 60.0, 5


def count_for(megabytes: int) -> int:
    """Return how many containers it takes for results of some MiB."""
    size = megabytes << 20
    return 0 if size <= MOST_BYTES else -(-size // FILE_BYTES)


def add_to(pod: dict[str, Any], count: int) -> None:
    """Add containers for results to a pod."""
    spec = pod["spec"]
    main = spec["containers"][0]
    mount = {"name": _NAME, "mountPath": _FOLDER}
    spec.setdefault("volumes", []).append({"name": _NAME, "emptyDir": {}})
    main.setdefault("volumeMounts", []).append(mount)
    main.setdefault("env", []).append({"name": FILES, "value": f"{_FOLDER}:{count}"})
    containers = [
        {
            **helper(main, f"{_NAME}-{number}", ["sh", "-c", _PRINT, "sh", f"{_FOLDER}/{number}"], [mount]),
            "restartPolicy": "Always",
            "resources": {"requests": _SIZES, "limits": _SIZES},
        }
        for number in range(count)
    ]
    spec["initContainers"] = [*inner(spec, "initContainers"), *containers]


def lines_of(job: ClusterJob, place: tuple[int, int]) -> Iterator[str]:
    """Yield what the containers of a replica's attempts have printed, the oldest attempt first.

    Args:
        job: the job.
        place: index of the role, and of the replica.

    Raises:
        KubernetesError: a log cannot be read.
    """
    for pod in group_pods(job.pods()).get(place, []):
        path = core_path("pods", job.namespace, names.name_of(pod), "log")
        for container in inner(pod, "spec", "initContainers"):
            if container["name"].startswith(f"{_NAME}-"):
                yield from _log(job, path, container["name"]).decode("ascii", "replace").splitlines()


def _log(job: ClusterJob, path: str, container: str) -> bytes:
    """Return a container's log; empty if it has none."""
    backoff = Backoff(0.25, 5.0, attempts=_ATTEMPTS)
    while True:
        try:
            with job.server.stream(path, silence=_SILENCE, container=container) as response:
                return b"".join(response.iter_bytes())
        except KubernetesError as error:
            if error.status in (400, 404):  # it never began, or the pod is gone
                return b""
            if not error.is_passing or not backoff.pause(error.wait):
                raise
