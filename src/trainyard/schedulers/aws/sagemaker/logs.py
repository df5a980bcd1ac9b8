"""Where the logs of a job's replicas are: a log stream for each host and each time that it was started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard.schedulers.aws.cloudwatch import AttemptLog, LogStreams, ReplicaAttempts
from trainyard.schedulers.aws.errors import AwsError
from trainyard.schedulers.aws.sagemaker.calls import describe_job, log_streams
from trainyard.schedulers.aws.sagemaker.names import LOG_GROUP
from trainyard.schedulers.aws.sagemaker.observe import layout
from trainyard.schedulers.aws.sagemaker.reasons import STATE_OF_REASON, reason_of
from trainyard.schedulers.aws.session import AwsSession
from trainyard.schedulers.base import LogBlock, LogQuery
from trainyard.specs.status import is_terminal

NAME = "AWSSageMakerScheduler"


def read_logs(
    session: AwsSession, job: dict[str, Any], replicas: Sequence[tuple[str, int]], query: LogQuery
) -> Iterator[LogBlock]:
    """Return the lines of replicas of one job."""
    return streams_of(session).read(TrainingLogs(session, job, replicas), query, NAME)


def streams_of(session: AwsSession) -> LogStreams:
    """Return what reads the streams of training jobs."""
    return LogStreams(
        session.client("logs", repeats=False),
        LOG_GROUP,
        renew=lambda: session.renewed_client("logs"),
        translate=lambda error, operation: session.translated(error, "logs", operation),
    )


class TrainingLogs:
    """Tells the streams of a job's replicas: one call for the job, one for each fifty of its streams.

    Args:
        session: where the job is.
        job: its description, which serves for the first time.
        replicas: those that are wanted.
    """

    def __init__(self, session: AwsSession, job: dict[str, Any], replicas: Sequence[tuple[str, int]]) -> None:
        self._session = session
        self._name: str = job["TrainingJobName"]
        self._job: dict[str, Any] | None = job
        hosts = {(role, index): host for role, index, host in layout(job)}
        self._hosts = {replica: hosts[replica] for replica in replicas}

    def refresh(self) -> Mapping[tuple[str, int], ReplicaAttempts]:
        """Ask, and return the runs of every replica and whether the job is over.

        Raises:
            AwsError: SageMaker or CloudWatch cannot be asked, or there is no such job any more.
        """
        job, self._job = self._job, None
        if job is None:
            job = describe_job(self._session, self._name)
        if job is None:
            raise AwsError(f"SageMaker does not show the job {self._name} any more")
        over = is_terminal(STATE_OF_REASON[reason_of(job)])
        # asked after the state: a job that is over has all the streams that it will ever have
        found = log_streams(self._session, self._name)
        ended = job.get("TrainingEndTime")
        end = ended.timestamp() if over and ended is not None else None
        result = {}
        for replica, host in self._hosts.items():
            names = of_host(found, self._name, host)
            attempts = [AttemptLog(name) for name in names[:-1]] + [
                AttemptLog(name, end) for name in names[-1:]
            ]
            result[replica] = ReplicaAttempts(attempts, over)
        return result


def of_host(streams: Sequence[Mapping[str, Any]], job: str, host: str) -> list[str]:
    """Return the streams of a host, ``JOB/algo-1-1700000000000``, the oldest first."""
    beginning = f"{job}/{host}-"
    own = [stream for stream in streams if stream["logStreamName"].startswith(beginning)]
    own = [stream for stream in own if "/" not in stream["logStreamName"][len(beginning) :]]
    own.sort(key=lambda stream: (stream.get("creationTime", 0), stream["logStreamName"]))
    return [stream["logStreamName"] for stream in own]
