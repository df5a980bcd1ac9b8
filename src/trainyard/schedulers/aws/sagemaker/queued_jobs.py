"""Jobs that go through a Batch queue: finding, describing, listing and ending them, and their logs.

The id of such a job is ``queue:name``. Batch's own id comes from the history, or from one call that asks for
the name.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainyard.backoff import Backoff
from trainyard.errors import ConfigError
from trainyard.schedulers.aws.cloudwatch import AttemptLog, ReplicaAttempts
from trainyard.schedulers.aws.errors import AwsError, AwsForbiddenError, AwsThrottledError
from trainyard.schedulers.aws.sagemaker import calls, names, observe
from trainyard.schedulers.aws.sagemaker.calls import CONCURRENCY, PAGE_SIZE
from trainyard.schedulers.aws.sagemaker.logs import NAME, of_host, streams_of
from trainyard.schedulers.aws.sagemaker.observe import layout
from trainyard.schedulers.aws.sagemaker.queue_request import SERVICE_JOB, queue_name
from trainyard.schedulers.aws.sagemaker.reasons import CANCELLED, STATE_OF_REASON, message_of, reason_of
from trainyard.schedulers.aws.session import AwsSession
from trainyard.schedulers.base import DescribeAppResponse, ListAppResponse, LogBlock, LogQuery
from trainyard.specs.status import AppState, is_terminal
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
            found = find_by_name(session, queue, name)
            if found is None:
                return None
            job_id = self._ids[app_id] = found["jobId"]
        service = describe_service(session, job_id)
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
        return describe_queued(app_id, service, self._training(app_id, service))

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe several jobs, many of a queue with one call, without their replicas."""
        result: dict[str, DescribeAppResponse | None] = {}
        groups: dict[tuple[int, str], dict[str, str]] = {}
        for app_id in app_ids:
            queue, _ = names.split_queued(app_id) or ("", "")
            groups.setdefault((id(self._session_of(app_id)), queue), {})[app_id] = self._id(app_id)
        for (_, queue), own in groups.items():
            if len(own) < WORTH_A_PAGE:
                result |= {app_id: self.describe(app_id) for app_id in own}
                continue
            session = self._session_of(next(iter(own)))
            wanted = {app_id.rpartition(":")[2]: job_id for app_id, job_id in own.items()}
            found = describe_services(session, queue, wanted)
            for app_id in own:
                service = found.get(app_id.rpartition(":")[2])
                is_there = service is not None and names.TAG_DELETED not in (service.get("tags") or {})
                result[app_id] = (
                    brief(app_id, service)
                    if is_there and service is not None
                    else self._just_submitted(app_id)
                )
        return result

    def _training(self, app_id: str, service: Job) -> Job | None:
        """Describe the training job of the last attempt; None if there is none, or it is over and gone."""
        attempts = training_jobs(service)
        if not attempts:
            return None
        training = calls.describe_job(self._session_of(app_id), attempts[-1])
        if training is None or not is_state_of_training(service, training):
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
        if service is not None and is_over(service):
            return
        job_id = self._id(app_id)
        if service is not None or (job_id and self._is_fresh(app_id)):
            reason = CANCELLED_BY.format(user=user_name())
            terminate(self._session_of(app_id), job_id, reason)

    def delete(self, app_id: str) -> None:
        """Delete the training jobs of a job, and mark it as deleted: Batch forgets it by itself, later.

        Raises:
            ConfigError: it has not ended.
        """
        service = self.find(app_id)
        if service is None:
            return
        if not is_over(service):
            state = state_of(service)
            raise ConfigError(f"{app_id} is {state}, so it cannot be deleted", hint="Cancel it first.")
        session = self._session_of(app_id)
        for name in training_jobs(service):
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
        return layout(training_of(service, self._training(app_id, service)))

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

    def refresh(self) -> Mapping[tuple[str, int], ReplicaAttempts]:
        """Ask, and return the runs of every replica and whether the job is over.

        Raises:
            AwsError: one of the services cannot be asked, or there is no such job any more.
        """
        service, self._service = self._service, None
        if service is None:
            service = describe_service(self._session, self._id)
        if service is None:
            raise AwsError(f"AWS Batch does not show the job {self._id} any more")
        over = is_over(service)
        attempts = training_jobs(service)
        # asked after the state: a job that is over has all the streams that it will ever have
        streams = {name: self._streams(name, is_last=name == attempts[-1]) for name in attempts}
        ends = _ends(service)
        result = {}
        for replica, host in self._hosts.items():
            runs: list[AttemptLog] = []
            for name, found in streams.items():
                own = of_host(found, name, host)
                runs += [AttemptLog(stream) for stream in own[:-1]]
                runs += [AttemptLog(stream, ends.get(name)) for stream in own[-1:]]
            result[replica] = ReplicaAttempts(runs, over)
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
        self._latest = {name for service in own for name in training_jobs(service)}

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
        return queues(session)
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
        for queue, job in list_services(session, queues, since, must=must)
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
        known = [tags_of[each] for each in training_jobs(job) if tags_of.get(each)]
        if known:
            return known[0]
        if everything:
            return {}
        described = describe_service(session, job["jobId"]) or {}
        tags: dict[str, str] = described.get("tags") or {}
        return tags

    with ThreadPoolExecutor(calls.CONCURRENCY, "describe-service-jobs") as pool:
        tags = list(pool.map(look, [job for _, job in services]))
    return [
        listed_service(queue, job, own)
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


# ---- Calls of AWS Batch for jobs that go through one of its queues


ATTEMPTS = 5
FIRST_DELAY, LONGEST_DELAY = 0.5, 8.0
#: A page of a queue's list holds a hundred jobs. It is read as far as it saves calls: so many jobs that are
#: wanted are worth a page.
WORTH_A_PAGE = 4
_NOT_FOUND = re.compile(r"not found|does not exist|doesn't exist|no such|cannot find", re.I)
_ENDED = re.compile(r"already|terminal|not in a state|cannot be terminated", re.I)
_ALL_TIMES = "1"  # milliseconds since the epoch


def submit_service(session: AwsSession, submission: Job, training: Job) -> Job:
    """Submit a job once; returns its ``jobId`` and ``jobArn``.

    The client token makes Batch refuse the same request a second time. So where an answer was lost the job is
    looked for by its name, which no other job has, and the request is sent again if it is not there.

    Raises:
        AwsError: Batch refused it, or could not be reached.
    """
    request = {**submission, "serviceRequestPayload": json.dumps(training)}
    lost, backoff = False, Backoff(FIRST_DELAY, LONGEST_DELAY, attempts=ATTEMPTS)
    while True:
        try:
            answer = session.call("batch", "SubmitServiceJob", repeats=False, **request)
            return {"jobId": answer["jobId"], "jobArn": answer.get("jobArn", "")}
        except AwsError as error:
            lost = lost or error.lost_answer
            if not lost and not isinstance(error, AwsThrottledError):
                raise
            found = _look_for_service(session, submission) if lost else None
            if found is not None:
                return {"jobId": found["jobId"], "jobArn": found.get("jobArn", "")}
            if not backoff.pause():  # lists lag behind
                raise


def _look_for_service(session: AwsSession, submission: Job) -> Job | None:
    try:
        return find_by_name(session, submission["jobQueue"], submission["jobName"])
    except AwsError:
        return None


def describe_service(session: AwsSession, job_id: str) -> Job | None:
    """Describe a job; None if there is none of this id.

    Raises:
        AwsError: Batch refuses or cannot be reached.
    """
    try:
        answer = session.call("batch", "DescribeServiceJob", jobId=job_id)
    except AwsError as error:
        if error.code == "ClientException" and _NOT_FOUND.search(error.message):
            return None
        raise
    return answer if answer.get("jobId") else None


def find_by_name(session: AwsSession, queue: str, name: str) -> Job | None:
    """Return a job as the list has it; None if the queue has none of this name, or there is no such queue."""
    filters = [{"name": "JOB_NAME", "values": [name]}]
    try:
        for page in _pages(session, queue, filters):
            for job in page:
                if job.get("jobName") == name:  # the filter does not mind the case
                    return job
    except AwsError as error:
        if error.code != "ClientException" or not _NOT_FOUND.search(error.message):
            raise
    return None


def describe_services(session: AwsSession, queue: str, wanted: dict[str, str]) -> dict[str, Job]:
    """Describe several jobs of one queue.

    Batch describes one job with a call, and lists a hundred. So the list is read, the newest jobs first, as
    long as that takes fewer calls than asking for those that are still missing.

    Args:
        session: where the queue is.
        queue: its name.
        wanted: the jobs' ids, by name; "" where the id is not known.

    Returns:
        The jobs that there are by name, as the list or as a description has them.
    """
    found: dict[str, Job] = {}
    missing = dict(wanted)
    if len(missing) >= WORTH_A_PAGE:
        for pages, page in enumerate(_all_of(session, queue), 1):
            for job in page:
                if job.get("jobName") in missing:
                    found[job["jobName"]] = job
                    del missing[job["jobName"]]
            if len(missing) < WORTH_A_PAGE * (pages + 1):
                break

    def look(name: str) -> Job | None:
        job_id = missing[name]
        return describe_service(session, job_id) if job_id else find_by_name(session, queue, name)

    if missing:
        with ThreadPoolExecutor(CONCURRENCY, "describe-service-jobs") as pool:
            answers = list(pool.map(look, missing))
        found |= {name: job for name, job in zip(missing, answers, strict=True) if job is not None}
    return found


def _all_of(session: AwsSession, queue: str, since: float | None = None) -> Iterator[list[Job]]:
    # without a filter only running jobs are listed
    after = _ALL_TIMES if since is None else str(max(int(since * 1000) - 1, 1))
    return _pages(session, queue, [{"name": "AFTER_CREATED_AT", "values": [after]}])


def _pages(session: AwsSession, queue: str, filters: list[Job]) -> Iterator[list[Job]]:
    return session.pages(
        "batch",
        "ListServiceJobs",
        "jobSummaryList",
        jobQueue=queue,
        filters=filters,
        maxResults=PAGE_SIZE,
    )


def queue_problem(session: AwsSession, queue: str) -> tuple[str, str] | None:
    """Return what is wrong with a queue, and what to do; None if it takes jobs.

    Args:
        session: where it is.
        queue: its name or ARN.

    Raises:
        AwsError: Batch refuses or cannot be reached.
    """
    found = session.call("batch", "DescribeJobQueues", jobQueues=[queue]).get("jobQueues") or []
    if not found:
        return f"there is no job queue {queue}", "Make it, or give another one."
    kind, state, status = (found[0].get(key, "") for key in ("jobQueueType", "state", "status"))
    if kind != SERVICE_JOB:
        hint = f"A queue for training jobs has the type {SERVICE_JOB}, and a service environment."
        return f"{queue} is a job queue of the type {kind or 'ECS'}", hint
    if state != "ENABLED" or status not in ("VALID", "UPDATING"):
        why = found[0].get("statusReason", "")
        return f"the job queue {queue} is {state}, {status}" + (f": {why}" if why else ""), "Have it enabled."
    return None


def check_queue(session: AwsSession, queue: str) -> None:
    """Refuse a queue that takes no training jobs, if the caller may look at it.

    Raises:
        ConfigError: it is not there, of another type, or disabled.
        AwsError: Batch cannot be reached.
    """
    try:
        problem = queue_problem(session, queue)
    except AwsForbiddenError:
        return
    if problem is not None:
        raise ConfigError(problem[0], hint=problem[1])


def queues(session: AwsSession) -> list[str]:
    """Return the names of the queues for training jobs; none for who may not look."""
    try:
        pages = session.pages("batch", "DescribeJobQueues", "jobQueues", repeats=False)
        return [
            queue["jobQueueName"]
            for page in pages
            for queue in page
            if queue.get("jobQueueType") == SERVICE_JOB
        ]
    except AwsForbiddenError:
        return []


def list_services(
    session: AwsSession, names: Iterable[str], since: float | None = None, *, must: bool = True
) -> list[tuple[str, Job]]:
    """Return the jobs of queues, each with its queue's name.

    Args:
        session: where to look.
        names: the queues.
        since: only jobs created at or after this time, seconds since the epoch.
        must: whether it is an error that a queue is not there, or may not be looked at.

    Raises:
        AwsError: Batch refuses or cannot be reached.
    """
    found: dict[str, tuple[str, Job]] = {}
    for queue in names:
        try:
            for page in _all_of(session, queue, since):
                found |= {job["jobId"]: (queue, job) for job in page}
        except AwsError as error:
            is_missing = error.code == "ClientException" and _NOT_FOUND.search(error.message)
            if must or not (is_missing or isinstance(error, AwsForbiddenError)):
                raise
    return list(found.values())


def terminate(session: AwsSession, job_id: str, reason: str) -> None:
    """End a job, in whatever state it is; does nothing if it has just ended."""
    try:
        session.call("batch", "TerminateServiceJob", jobId=job_id, reason=reason)
    except AwsError as error:
        if error.code != "ClientException" or not _ENDED.search(error.message):
            raise


# ---- states


STATE_OF_STATUS: dict[str, AppState] = {
    "SUBMITTED": AppState.PENDING,
    "PENDING": AppState.PENDING,
    "RUNNABLE": AppState.PENDING,
    "SCHEDULED": AppState.PENDING,
    "STARTING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}
_WAITING = {
    "SUBMITTED": "AWS Batch has not looked at it yet",
    "PENDING": "waits in the queue",
    "RUNNABLE": "waits in the queue for its turn and for capacity",
    "SCHEDULED": "SageMaker has it, and looks for instances",
    "STARTING": "has its instances; data and image are fetched",
}
_TIMEOUT = re.compile(r"exceeded|timed? ?out", re.I)
_FROM_SAGEMAKER = "Received status from SageMaker: "


def training_jobs(service: Job) -> list[str]:
    """Return the names of the training jobs of all attempts so far, the oldest first."""
    attempts = [*(service.get("attempts") or []), service.get("latestAttempt") or {}]
    arns = [(attempt.get("serviceResourceId") or {}).get("value", "") for attempt in attempts]
    return list(dict.fromkeys(arn.rpartition("/")[2] for arn in arns if arn))


def request_of(service: Job) -> dict[str, Any]:
    """Return the CreateTrainingJob request that the queue holds; empty if it cannot be read."""
    try:
        request = json.loads(service.get("serviceRequestPayload") or "{}")
    except ValueError:
        return {}
    return request if isinstance(request, dict) else {}


def training_of(service: Job, training: Job | None) -> dict[str, Any]:
    """Return a job as SageMaker would describe it: before there is a training job, from the request."""
    if training is not None:
        return dict(training)
    return {**request_of(service), "TrainingJobStatus": "InProgress", "SecondaryStatus": "Pending"}


def state_of(service: Job, training: Job | None = None) -> AppState:
    """Return the state of a job: Batch calls FAILED what was stopped, too."""
    state = STATE_OF_STATUS.get(service.get("status", ""), AppState.UNKNOWN)
    if state is not AppState.FAILED:
        return state
    if _TIMEOUT.search(str(service.get("statusReason") or "")):
        return AppState.FAILED
    if service.get("isTerminated"):
        return AppState.CANCELLED
    stopped = training is not None and reason_of(training) == CANCELLED
    return AppState.CANCELLED if stopped else AppState.FAILED


def queue_message(service: Job, training: Job | None = None) -> str:
    """Return why a job is in its state."""
    status, said = service.get("status", ""), str(service.get("statusReason") or "")
    state = state_of(service, training)
    if state in (AppState.SUCCEEDED, AppState.UNKNOWN):
        return ""
    if not is_terminal(state):
        text = "is being stopped" if service.get("isTerminated") else _WAITING.get(status, "")
        past = _past(service)
        return "; ".join(filter(None, [text, past if text else "", said if text and said != past else ""]))
    if training is not None and STATE_OF_REASON[reason_of(training)] is state is AppState.FAILED:
        return message_of(training)
    return said.removeprefix(_FROM_SAGEMAKER) or ("cancelled" if state is AppState.CANCELLED else "failed")


def _past(service: Job) -> str:
    """Return how the attempts so far ended, while another one is to come."""
    ended = [attempt for attempt in service.get("attempts") or [] if attempt.get("stoppedAt")]
    if not ended:
        return ""
    most = (service.get("retryStrategy") or {}).get("attempts", 1)
    why = str(ended[-1].get("statusReason") or "").removeprefix(_FROM_SAGEMAKER)
    return f"attempt {len(ended)} of {most} has ended" + (f": {why}" if why else "")


def describe_queued(app_id: str, service: Job, training: Job | None) -> DescribeAppResponse:
    """Return a job as Batch describes it, with what SageMaker says of its last attempt."""
    state = state_of(service, training)
    whole = training_of(service, training)
    response = observe.describe(app_id, whole)
    response.state = state
    response.msg = queue_message(service, training)
    response.num_restarts += max(0, len(training_jobs(service)) - 1)
    response.metadata = {**response.metadata, **_queue_facts(service)}
    response.ui_url = response.ui_url or names.batch_console_url(service.get("jobArn", ""))
    for role in response.roles_statuses:
        for replica in role.replicas:
            replica.state = state
            replica.restarts = response.num_restarts
            if not is_terminal(state):
                replica.exit_code = replica.ended_at = None
    return response


def brief(app_id: str, service: Job) -> DescribeAppResponse:
    """Return a job as the queue's list has it: its state and why, without its replicas."""
    return DescribeAppResponse(
        app_id,
        state_of(service),
        num_restarts=max(0, len(training_jobs(service)) - 1),
        msg=queue_message(service),
        metadata=_queue_facts(service),
    )


def _queue_facts(service: Job) -> dict[str, str]:
    facts: dict[str, Any] = {
        "batch_job": service.get("jobArn") or service.get("jobId"),
        "batch_queue": queue_name(service.get("jobQueue") or ""),
        "batch_status": service.get("status"),
        "batch_share": service.get("shareIdentifier") or service.get("quotaShareName"),
        "batch_priority": service.get("schedulingPriority"),
        "preemptions": (service.get("preemptionSummary") or {}).get("preemptedAttemptCount"),
        "training_jobs": ", ".join(training_jobs(service)),
    }
    for number, attempt in enumerate(service.get("attempts") or [], 1):
        facts[f"attempt_{number}"] = str(attempt.get("statusReason") or "").removeprefix(_FROM_SAGEMAKER)
    return {key: str(value) for key, value in facts.items() if value not in (None, "")}


def listed_service(queue: str, service: Job, tags: Mapping[str, str]) -> ListAppResponse:
    """Return a job as the queue's list has it."""
    name = service["jobName"]
    row = ListAppResponse(
        f"{queue_name(queue)}:{name}",
        state_of(service),
        name=tags.get(names.TAG_APP_NAME) or name.rpartition("-")[0] or name,
    )
    row.submitted_at = _from_milliseconds(service.get("createdAt"))
    row.ended_at = _from_milliseconds(service.get("stoppedAt"))
    return row


def _from_milliseconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if milliseconds else None


def is_over(service: Job) -> bool:
    """Tell whether a job has ended, and no attempt will come any more."""
    return is_terminal(STATE_OF_STATUS.get(service.get("status", ""), AppState.UNKNOWN))


def is_state_of_training(service: Job, training: Job) -> bool:
    """Tell whether a training job is the attempt that the queue's state is about, and not one before it."""
    waiting = service.get("status") in ("SUBMITTED", "PENDING", "RUNNABLE")
    return not (waiting and is_terminal(STATE_OF_REASON[reason_of(training)]))
