"""What can be asked about a job of a supervisor beside its description."""

from __future__ import annotations

from collections.abc import Iterator

from shunter.schedulers.responses import JobDetails, ReplicaUsage
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.schedulers.supervisor.usage_file import replica_usage


class SupervisedJobDetails(JobDetails):
    """The details of a job, from its directory, which need not exist."""

    def __init__(self, job: JobDirectory) -> None:
        self._job = job

    def directory_of(self, role: str, replica: int) -> str:
        """Return the working directory that a point of a sweep has for itself; "" if it has none."""
        return self._job.own_directory(role, replica)

    def usage(self, after: float) -> Iterator[ReplicaUsage]:
        """Return the samples that the job's supervisor has taken."""
        return replica_usage(self._job.usage_path(), list(self._job.log_dirs()), after)
