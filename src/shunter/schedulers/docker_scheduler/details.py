"""What can be asked about a job of containers beside its description."""

from __future__ import annotations

from collections.abc import Iterator

from shunter.docker.engine import Engine
from shunter.schedulers.exec.container import inventory
from shunter.schedulers.exec.container.container_usage import usage_of
from shunter.schedulers.responses import JobDetails, ReplicaUsage


class DockerJobDetails(JobDetails):
    """The details of the job with an id, on the daemon behind a client."""

    def __init__(self, engine: Engine, app_id: str) -> None:
        self._engine = engine
        self._app_id = app_id

    def usage(self, after: float) -> Iterator[ReplicaUsage]:
        """Return the samples that its watcher has kept; what it uses now if there are none."""
        job = inventory.load_job(self._engine, self._app_id)
        return iter(()) if job is None else usage_of(self._engine, job, after)
