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
    known = {(role, index): host for role, index, host in places}
    hosts = {replica: known[replica] for replica in replicas}
    return read_streams(session, LOG_GROUP, _TrainingLogs(session, hosts, runs).refresh, query)


class _TrainingLogs:
    """Finds the streams of a job's replicas: one call for the job, one for each fifty of its streams."""

    def __init__(
        self, session: AwsSession, hosts: Mapping[tuple[str, int], str], runs: Callable[[], Runs]
    ) -> None:
        self._session = session
        self._hosts = hosts
        self._runs = runs
        self._complete: dict[str, list[dict[str, Any]]] = {}

    def refresh(self) -> Mapping[tuple[str, int], ReplicaAttempts]:
        """Ask, and return the attempts of every replica and whether the job is over."""
        ends, over = self._runs()
        # asked after the state: a job that is over has all the streams that it will ever have
        streams = {name: self._streams(name, is_last=name == list(ends)[-1]) for name in ends}
        result = {}
        for replica, host in self._hosts.items():
            attempts: list[AttemptLog] = []
            for name, found in streams.items():
                own = _of_host(found, name, host)
                attempts += [AttemptLog(stream) for stream in own[:-1]]
                attempts += [AttemptLog(stream, ends[name]) for stream in own[-1:]]
            result[replica] = ReplicaAttempts(attempts, over)
        return result

    def _streams(self, name: str, *, is_last: bool) -> list[dict[str, Any]]:
        """Return a training job's streams, which no longer change once another job has followed it."""
        if name in self._complete:
            return self._complete[name]
        found = _log_streams(self._session, name)
        if not is_last:
            self._complete[name] = found
        return found


def _log_streams(session: AwsSession, name: str) -> list[dict[str, Any]]:
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
