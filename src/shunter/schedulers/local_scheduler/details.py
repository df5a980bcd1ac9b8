"""What can be asked about a local job beside its description."""

from __future__ import annotations

from collections.abc import Iterator

from shunter.schedulers.exec.usage_file import replica_usage
from shunter.schedulers.responses import JobDetails, ReplicaUsage
from shunter.schedulers.supervisor.job_directory import ProcessJob


class LocalJobDetails(JobDetails):
    """The details of the job with an id, from its directory."""

    def __init__(self, app_id: str) -> None:
        self._app_id = app_id

    def directory_of(self, role: str, replica: int) -> str:
        """Return the working directory that a point of a sweep has for itself; "" if it has none."""
        return ProcessJob.of(self._app_id).own_directory(role, replica)

    def usage(self, after: float) -> Iterator[ReplicaUsage]:
        """Return the samples that the job's supervisor has taken."""
        job = ProcessJob.find(self._app_id)
        if job is None:
            return iter(())
        return replica_usage(job.usage_path(), list(job.log_dirs()), after)
