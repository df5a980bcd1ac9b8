"""Where the logs of a job's replicas are: the log streams of their attempts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shunter.schedulers.api import LogBlock, LogQuery
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws.batch_jobs import seconds_of
from shunter.schedulers.aws.cloudwatch import AttemptLog, ReplicaAttempts, read_streams
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_batch_scheduler import observe
from shunter.schedulers.aws_batch_scheduler.observe import ReplicaRef
from shunter.schedulers.aws_batch_scheduler.reasons import reason_of
from shunter.specs.status import is_terminal

#: How often in a row a job may be missing from Batch's answers before following it ends.
MOST_MISSES = 10


def read_logs(
    session: AwsSession,
    job: dict[str, Any],
    places: Sequence[ReplicaRef],
    query: LogQuery,
) -> Iterator[LogBlock]:
    """Return the lines of replicas of one job."""
    logs = BatchLogs(session, job, places)
    return read_streams(session, observe.log_group(places[0]), logs.refresh, query)


class BatchLogs:
    """Finds the log streams of a job's replicas: a call for the job, and one for each hundred replicas.

    The first refresh takes the description that is given.
    """

    def __init__(self, session: AwsSession, job: dict[str, Any], places: Sequence[ReplicaRef]) -> None:
        self._session = session
        self._id: str = job["jobId"]
        self._job: dict[str, Any] | None = job
        self._places = list(places)
        self._seen: Mapping[tuple[str, int], ReplicaAttempts] = {}
        self._misses = 0

    def refresh(self) -> Mapping[tuple[str, int], ReplicaAttempts]:
        """Ask Batch, and return the attempts of every replica and whether it has ended.

        Raises:
            AwsError: Batch cannot be reached, or has not shown the job for a while.
        """
        job, self._job = self._job, None
        if job is None:
            job = observe.describe_jobs(self._session, [self._id]).get(self._id)
        if job is None:  # Batch sometimes shows jobs with a delay
            self._misses += 1
            if self._seen and self._misses < MOST_MISSES:
                return self._seen
            raise AwsError(f"AWS Batch no longer shows the job {self._id}")
        self._misses = 0
        is_over = is_terminal(observe.app_state(job)[0])
        details = observe.details_of(self._session, job, self._places)
        self._seen = {
            (place.role, place.replica): ReplicaAttempts(
                attempts_of(detail), is_over or is_terminal(reason_of(detail).state)
            )
            for place, detail in details
        }
        return self._seen


def attempts_of(detail: Mapping[str, Any]) -> list[AttemptLog]:
    """Return a replica's attempts that have a log stream, the oldest first."""
    ended: dict[str, float | None] = {}
    for attempt in detail.get("attempts") or []:
        stream = (attempt.get("container") or {}).get("logStreamName")
        if stream:
            ended[stream] = seconds_of(attempt.get("stoppedAt"))
    current = (detail.get("container") or {}).get("logStreamName")
    if current and current not in ended:
        is_over = is_terminal(reason_of(dict(detail)).state)
        ended[current] = seconds_of(detail.get("stoppedAt")) if is_over else None
    return [AttemptLog(stream, end) for stream, end in ended.items()]
