"""The log streams of a job's replicas in CloudWatch: one for each host and each time that it was started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from shunter.schedulers.api import LogBlock, LogQuery
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws.cloudwatch import AttemptLog, ReplicaAttempts, read_streams
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_sagemaker_scheduler.names import LOG_GROUP
from shunter.schedulers.aws_sagemaker_scheduler.observe import describe_job, layout
from shunter.schedulers.aws_sagemaker_scheduler.reasons import is_over

#: The training jobs of a job so far, oldest first, each with the time of its end, in seconds since the epoch,
#: if that is known; and whether no more will follow.
Runs = tuple[dict[str, float | None], bool]


def read_logs(
    session: AwsSession, job: Mapping[str, Any], replicas: Sequence[tuple[str, int]], query: LogQuery
) -> Iterator[LogBlock]:
    """Return the lines of replicas of one training job, of all its starts in sequence."""
    name, known = job["TrainingJobName"], [job]

    def runs() -> Runs:
        found = known.pop() if known else describe_job(session, name)
        if found is None:
            raise AwsError(f"SageMaker no longer shows the job {name}")
        ended = found.get("TrainingEndTime")
        over = is_over(found)
        return {name: ended.timestamp() if over and ended is not None else None}, over

    return read_runs(session, layout(job), replicas, runs, query)


def read_runs(
    session: AwsSession,
    places: Iterable[tuple[str, int, str]],
    replicas: Sequence[tuple[str, int]],
    runs: Callable[[], Runs],
    query: LogQuery,
) -> Iterator[LogBlock]:
    """Return the lines of replicas of a job that is one training job or, in a queue, several."""
    hosts = {(role, index): host for role, index, host in places}
    streams: dict[str, list[Mapping[str, Any]]] = {}
    complete: set[str] = set()

    def refresh() -> Mapping[tuple[str, int], ReplicaAttempts]:
        """Ask for the job, and for each fifty of the streams of training jobs that may still get some."""
        ends, over = runs()
        # asked after the state: a job that is over has all the streams that it will ever have, and so has one
        # that another job had followed when its streams were asked for
        streams.update((name, _log_streams(session, name)) for name in ends if name not in complete)
        complete.update(list(ends)[:-1])
        attempts: dict[tuple[str, int], list[AttemptLog]] = {replica: [] for replica in replicas}
        for replica, found in attempts.items():
            for name, end in ends.items():
                own = _of_host(streams[name], name, hosts[replica])
                found += [AttemptLog(stream) for stream in own[:-1]]
                found += [AttemptLog(stream, end) for stream in own[-1:]]
        return {replica: ReplicaAttempts(found, over) for replica, found in attempts.items()}

    return read_streams(session, LOG_GROUP, refresh, query)


def _log_streams(session: AwsSession, name: str) -> list[Mapping[str, Any]]:
    """Return the log streams of a training job; none if it has not written any."""
    group, prefix = LOG_GROUP, f"{name}/"
    try:
        pages = session.pages(
            "logs", "DescribeLogStreams", "logStreams", logGroupName=group, logStreamNamePrefix=prefix
        )
        return [stream for page in pages for stream in page]
    except AwsError as error:
        if error.code == "ResourceNotFoundException":
            return []
        raise


def _of_host(streams: Sequence[Mapping[str, Any]], job: str, host: str) -> list[str]:
    """Return the streams of a host, ``JOB/algo-1-1700000000000``, the oldest first."""
    beginning = f"{job}/{host}-"
    own = [stream for stream in streams if stream["logStreamName"].startswith(beginning)]
    own = [stream for stream in own if "/" not in stream["logStreamName"][len(beginning) :]]
    own.sort(key=lambda stream: (stream.get("creationTime", 0), stream["logStreamName"]))
    return [stream["logStreamName"] for stream in own]
