"""Jobs that go through a Batch queue: finding, describing, listing and ending them, and their logs.

The id of such a job is ``queue:name``. Batch's own id comes from the history, or from one call that asks for
the name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainyard.errors import ConfigError
from trainyard.schedulers.aws.cloudwatch import Attempt, Attempts
from trainyard.schedulers.aws.errors import AwsError
from trainyard.schedulers.aws.sagemaker import calls, names, observe, queue_calls, queue_observe
from trainyard.schedulers.aws.sagemaker.logs import NAME, of_host, streams_of
from trainyard.schedulers.aws.sagemaker.observe import layout
from trainyard.schedulers.aws.session import AwsSession
from trainyard.schedulers.base import DescribeAppResponse, ListAppResponse, LogBlock, LogQuery
from trainyard.specs.status import AppState
from trainyard.system.identity import user_name

Job = dict[str, Any]

#: How long Batch may take until it shows a job that it has accepted.
SETTLING_SECONDS = 60.0
CANCELLED_BY = "cancelled by {user} with trainyard"


class QueuedJobs:
    """The jobs of queues.

    Args:
        session_of: gives the session by which a job is reached, by its id.
        recall: gives what the history keeps of a job of ours: the ARN of its service job.
    """

    def __init__(self, session_of: Callable[[str], AwsSession], recall: Callable[[str], str | None]) -> None:
        self._session_of = session_of
        self._recall = recall
        self._ids: dict[str, str] = {}
        self._submitted_at: dict[str, float] = {}

    def remember(self, app_id: str, job_id: str) -> None:
        """Keep Batch's id of a job that was submitted just now."""
        self._ids[app_id] = job_id
        self._submitted_at[app_id] = time.monotonic()

    def _id(self, app_id: str) -> str:
        if app_id not in self._ids:
            arn = (self._recall(app_id) or "").partition(" profile=")[0]
            self._ids[app_id] = arn.rpartition("/")[2] if ":service-job/" in arn else ""
        return self._ids[app_id]

    # ---- looking

    def find(self, app_id: str) -> Job | None:
        """Describe a service job; None if there is none, or it was deleted."""
        queue, name = names.split_queued(app_id) or ("", "")
        session, job_id = self._session_of(app_id), self._id(app_id)
        if not job_id:
            found = queue_calls.find_by_name(session, queue, name)
            if found is None:
                return None
            job_id = self._ids[app_id] = found["jobId"]
        service = queue_calls.describe(session, job_id)
        if service is None:
            return None
        self._submitted_at.pop(app_id, None)
        return None if names.TAG_DELETED in (service.get("tags") or {}) else service

    def exists(self, app_id: str) -> bool:
        """Tell whether there is a job of this id."""
        return self.find(app_id) is not None or self._is_fresh(app_id)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what Batch says of a job, and SageMaker of its last attempt."""
        service = self.find(app_id)
        if service is None:
            return self._just_submitted(app_id)
        return queue_observe.describe(app_id, service, self._training(app_id, service))

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe several jobs, many of a queue with one call, without their replicas."""
        result: dict[str, DescribeAppResponse | None] = {}
        groups: dict[tuple[int, str], dict[str, str]] = {}
        for app_id in app_ids:
            queue, _ = names.split_queued(app_id) or ("", "")
            groups.setdefault((id(self._session_of(app_id)), queue), {})[app_id] = self._id(app_id)
        for (_, queue), own in groups.items():
            if len(own) < queue_calls.WORTH_A_PAGE:
                result |= {app_id: self.describe(app_id) for app_id in own}
                continue
            session = self._session_of(next(iter(own)))
            wanted = {app_id.rpartition(":")[2]: job_id for app_id, job_id in own.items()}
            found = queue_calls.describe_many(session, queue, wanted)
            for app_id in own:
                service = found.get(app_id.rpartition(":")[2])
                is_there = service is not None and names.TAG_DELETED not in (service.get("tags") or {})
                result[app_id] = (
                    queue_observe.brief(app_id, service)
                    if is_there and service is not None
                    else self._just_submitted(app_id)
                )
        return result

    def _training(self, app_id: str, service: Job) -> Job | None:
        """Describe the training job of the last attempt; None if there is none, or it is over and gone."""
        attempts = queue_observe.training_jobs(service)
        if not attempts:
            return None
        training = calls.describe_job(self._session_of(app_id), attempts[-1])
        if training is None or not queue_observe.is_state_of_training(service, training):
            return None
        return training

    def _is_fresh(self, app_id: str) -> bool:
        submitted = self._submitted_at.get(app_id)
        return submitted is not None and time.monotonic() - submitted < SETTLING_SECONDS

    def _just_submitted(self, app_id: str) -> DescribeAppResponse | None:
        if not self._is_fresh(app_id):
            return None
        return DescribeAppResponse(app_id, AppState.SUBMITTED, msg="AWS Batch does not show it yet")

    # ---- ending

    def cancel(self, app_id: str) -> None:
        """Ask a job to end, in whatever state it is; does nothing if it has ended or does not exist."""
        service = self.find(app_id)
        if service is not None and queue_observe.is_over(service):
            return
        job_id = self._id(app_id)
        if service is not None or (job_id and self._is_fresh(app_id)):
            reason = CANCELLED_BY.format(user=user_name())
            queue_calls.terminate(self._session_of(app_id), job_id, reason)

    def delete(self, app_id: str) -> None:
        """Delete the training jobs of a job, and mark it as deleted: Batch forgets it by itself, later.

        Raises:
            ConfigError: it has not ended.
        """
        service = self.find(app_id)
        if service is None:
            return
        if not queue_observe.is_over(service):
            state = queue_observe.state_of(service)
            raise ConfigError(f"{app_id} is {state}, so it cannot be deleted", hint="Cancel it first.")
        session = self._session_of(app_id)
        for name in queue_observe.training_jobs(service):
            if calls.describe_job(session, name) is not None:
                session.call("sagemaker", "DeleteTrainingJob", TrainingJobName=name)
        session.call(
            "batch",
            "TagResource",
            resourceArn=service["jobArn"],
            tags={names.TAG_DELETED: str(int(time.time()))},
        )

    # ---- logs

    def replicas(self, service: Job, app_id: str) -> list[tuple[str, int, str]]:
        """Return role, index and host of every replica."""
        return layout(queue_observe.training_of(service, self._training(app_id, service)))

    def log_blocks(
        self, app_id: str, service: Job, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return the lines of several replicas, of all attempts in sequence."""
        session = self._session_of(app_id)
        hosts = {(role, index): host for role, index, host in self.replicas(service, app_id)}
        wanted = {replica: hosts[replica] for replica in replicas}
        return streams_of(session).read(QueuedLogs(session, service, wanted), query, NAME)


class QueuedLogs:
    """Tells the streams of a job's replicas: those of the training job of each attempt.

    Args:
        session: where the job is.
        service: its description, which serves for the first time.
        hosts: host of each replica that is wanted.
    """

    def __init__(self, session: AwsSession, service: Job, hosts: Mapping[tuple[str, int], str]) -> None:
        self._session = session
        self._id: str = service["jobId"]
        self._service: Job | None = service
        self._hosts = hosts
        self._ended: dict[str, list[Job]] = {}

    def refresh(self) -> Mapping[tuple[str, int], Attempts]:
        """Ask, and return the runs of every replica and whether the job is over.

        Raises:
            AwsError: one of the services cannot be asked, or there is no such job any more.
        """
        service, self._service = self._service, None
        if service is None:
            service = queue_calls.describe(self._session, self._id)
        if service is None:
            raise AwsError(f"AWS Batch does not show the job {self._id} any more")
        over = queue_observe.is_over(service)
        training_jobs = queue_observe.training_jobs(service)
        # asked after the state: a job that is over has all the streams that it will ever have
        streams = {name: self._streams(name, is_last=name == training_jobs[-1]) for name in training_jobs}
        ends = _ends(service)
        result = {}
        for replica, host in self._hosts.items():
            runs: list[Attempt] = []
            for name, found in streams.items():
                own = of_host(found, name, host)
                runs += [Attempt(stream) for stream in own[:-1]]
                runs += [Attempt(stream, ends.get(name)) for stream in own[-1:]]
            result[replica] = Attempts(runs, over)
        return result

    def _streams(self, name: str, *, is_last: bool) -> list[Job]:
        """Return the streams of an attempt; those of one that another has followed do not change."""
        if name not in self._ended:
            found = calls.log_streams(self._session, name)
            if is_last:
                return found
            self._ended[name] = found
        return self._ended[name]


def _ends(service: Job) -> dict[str, float]:
    """Return when attempts ended, seconds since the epoch, by the name of the training job."""
    ends = {}
    for attempt in service.get("attempts") or []:
        arn = (attempt.get("serviceResourceId") or {}).get("value", "")
        if arn and attempt.get("stoppedAt"):
            ends[arn.rpartition("/")[2]] = attempt["stoppedAt"] / 1000
    return ends


# ---- lists


def list_all(
    session: AwsSession, since: float | None, name: str, *, queue: str = "", everything: bool = False
) -> list[ListAppResponse]:
    """Return jobs that went to SageMaker themselves, and those that are or were in queues.

    Args:
        session: where to look.
        since: only jobs created at or after this time, seconds since the epoch.
        name: only jobs whose name contains this.
        queue: only jobs of this queue; "" for those of all queues and of none.
        everything: also jobs of others.
    """
    with ThreadPoolExecutor(1, "list-queues") as pool:
        looking = pool.submit(_queues, session, queue)
        # of a queue's job every attempt is a training job, with the name that Batch gave it
        training = calls.list_jobs(session, since, "" if queue else name, everything=everything)
        queues = looking.result()
    through = {each for each in map(_queue_of, training) if each}
    wanted = list(dict.fromkeys([*queues, *([] if queue else sorted(through))]))
    services = _services(session, wanted, since, name, must=bool(queue)) if wanted else []
    rows = _rows_of(session, services, training, everything=everything)
    if queue:
        return rows
    attempts = _Attempts(service for _, service in services)
    shown = {row.app_id for row in rows}
    gone = [job for job in training if _app_id_of(job) and _app_id_of(job) not in shown]
    direct = [job for job in training if not _app_id_of(job) and job not in attempts]
    return [*rows, *_forgotten(gone), *map(observe.listed, direct)]


class _Attempts:
    """Tells the training jobs of service jobs from others where there are no tags to tell.

    Batch names them ``AWSBatch``, then the request's name, as far as there is room, and 32 digits.
    """

    def __init__(self, services: Iterable[Job]) -> None:
        own = list(services)
        self._names = [service["jobName"] for service in own]
        self._latest = {name for service in own for name in queue_observe.training_jobs(service)}

    def __contains__(self, job: Job) -> bool:
        name = job["TrainingJobName"]
        made = re.fullmatch(r"AWSBatch(.+?)[0-9a-f]{32}", name)
        return name in self._latest or (
            made is not None and any(each.startswith(made[1]) for each in self._names)
        )


def _queues(session: AwsSession, queue: str) -> list[str]:
    if queue:
        return [queue]
    try:
        return queue_calls.queues(session)
    except AwsError:  # whoever has no queues need not reach Batch
        return []


def _forgotten(training: Iterable[Job]) -> list[ListAppResponse]:
    """Return jobs that their queue does not show any more, by their last attempts."""
    latest: dict[str, Job] = {}
    for job in training:
        latest[_app_id_of(job)] = job
    rows = []
    for app_id, job in latest.items():
        row = observe.listed(job)
        row.app_id = app_id
        rows.append(row)
    return rows


def _services(
    session: AwsSession, queues: Iterable[str], since: float | None, name: str, *, must: bool
) -> list[tuple[str, Job]]:
    """Return the service jobs of queues, each with its queue."""
    return [
        (queue, job)
        for queue, job in queue_calls.list_jobs(session, queues, since, must=must)
        if name in job["jobName"] and (since is None or (job.get("createdAt") or 0) >= int(since * 1000))
    ]


def _rows_of(
    session: AwsSession, services: Sequence[tuple[str, Job]], training: Iterable[Job], *, everything: bool
) -> list[ListAppResponse]:
    """Return the service jobs that are ours, or all.

    The list of a queue has no tags, which say what is ours: the training jobs that were found have them, and
    jobs of which there is none yet are described, a few at a time.
    """
    tags_of = {job["TrainingJobName"]: _tags(job) for job in training}

    def look(job: Job) -> Mapping[str, str]:
        known = [tags_of[each] for each in queue_observe.training_jobs(job) if tags_of.get(each)]
        if known:
            return known[0]
        if everything:
            return {}
        described = queue_calls.describe(session, job["jobId"]) or {}
        tags: dict[str, str] = described.get("tags") or {}
        return tags

    with ThreadPoolExecutor(calls.CONCURRENCY, "describe-service-jobs") as pool:
        tags = list(pool.map(look, [job for _, job in services]))
    return [
        queue_observe.listed(queue, job, own)
        for (queue, job), own in zip(services, tags, strict=True)
        if everything or (names.TAG_VERSION in own and names.TAG_DELETED not in own)
    ]


def _tags(job: Job) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in job.get("Tags") or []}


def _app_id_of(job: Job) -> str:
    """Return the id of the job whose attempt a training job is; "" of one that came through no queue."""
    return _tags(job).get(names.TAG_QUEUED, "")


def _queue_of(job: Job) -> str:
    return _app_id_of(job).rpartition(":")[0]
