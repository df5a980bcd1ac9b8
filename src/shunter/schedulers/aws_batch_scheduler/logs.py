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
    job_id, described = job["jobId"], [job]
    seen, misses = dict[tuple[str, int], ReplicaAttempts](), 0

    def refresh() -> Mapping[tuple[str, int], ReplicaAttempts]:
        """Ask for the job, and for each hundred of its replicas; the first time, take what is known."""
        nonlocal seen, misses
        now = (
            described.pop() if described else observe.describe_jobs(session, [job["jobId"]]).get(job["jobId"])
        )
        if now is None:  # Batch sometimes shows jobs with a delay
            misses += 1
            if seen and misses < MOST_MISSES:
                return seen
            raise AwsError(f"AWS Batch no longer shows the job {job_id}")
        misses, is_over = 0, is_terminal(observe.app_state(now)[0])
        seen = {
            (place.role, place.replica): ReplicaAttempts(
                attempts_of(detail), is_over or is_terminal(reason_of(detail).state)
            )
            for place, detail in observe.details_of(session, now, places)
        }
        return seen

    return read_streams(session, observe.log_group(places[0]), refresh, query)


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
