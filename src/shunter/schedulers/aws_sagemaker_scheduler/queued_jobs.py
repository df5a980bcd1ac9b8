"""Jobs that go through a queue of AWS Batch: finding, describing, listing and ending them, and their logs.

The id of such a job is ``queue:name``. Batch calls it a service job, and makes a training job of each of its
attempts; the service job's state counts, and the last training job gives the details. Batch's own id comes
from the history, or from one call that asks for the name.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from shunter.parallel import for_all
from shunter.schedulers.api import DescribeAppResponse, ListAppResponse, LogBlock, LogQuery, not_ended
from shunter.schedulers.aws import aws_names
from shunter.schedulers.aws.aws_errors import AwsError, AwsForbiddenError
from shunter.schedulers.aws.batch_jobs import (
    TRAINING,
    KnownJobs,
    cancelled_by,
    find_by_name,
    is_missing,
    job_pages,
    list_jobs,
    seconds_of,
)
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_sagemaker_scheduler import names, observe, reasons
from shunter.schedulers.aws_sagemaker_scheduler.logs import Runs, read_runs
from shunter.schedulers.aws_sagemaker_scheduler.observe import describe_job, tags_of
from shunter.specs.status import AppState, is_terminal

ServiceJob = Mapping[str, Any]

_ENDED = re.compile(r"already|terminal|not in a state|cannot be terminated", re.I)
_TIMEOUT = re.compile(r"exceeded|timed? ?out", re.I)
_FROM_SAGEMAKER = "Received status from SageMaker: "
#: State and message by Batch's status.
_MEANINGS: dict[str, tuple[AppState, str]] = {
    "SUBMITTED": (AppState.PENDING, "AWS Batch has not processed it yet"),
    "PENDING": (AppState.PENDING, "waits in the queue"),
    "RUNNABLE": (AppState.PENDING, "waits in the queue for its turn and for capacity"),
    "SCHEDULED": (AppState.PENDING, "SageMaker has it, and looks for instances"),
    "STARTING": (AppState.PENDING, "has its instances; data and image are fetched"),
    "RUNNING": (AppState.RUNNING, ""),
    "SUCCEEDED": (AppState.SUCCEEDED, ""),
    "FAILED": (AppState.FAILED, ""),
}


class QueuedJobs:
    """The jobs of queues, by what is ``known`` of them."""

    def __init__(self, known: KnownJobs) -> None:
        self._known = known

    # ---- observing

    def find(self, app_id: str) -> dict[str, Any] | None:
        """Describe a service job; None if it does not exist, or was deleted."""
        queue, name = names.split_queued(app_id) or ("", "")
        ref, session = self._known.ref(app_id), self._known.session_of(app_id)
        if not ref.job_id:
            found = find_by_name(session, "ListServiceJobs", queue, name)
            if not found:
                return None
            ref = ref._replace(job_id=found[0]["jobId"], arn=found[0].get("jobArn", ""))
            self._known.remember(app_id, ref)
        service = _describe_service_job(session, ref.job_id)
        if service is None:
            return None
        self._known.shown(app_id)
        return None if aws_names.TAG_DELETED in (service.get("tags") or {}) else service

    def exists(self, app_id: str) -> bool:
        """Tell whether a job of this id exists."""
        return self.find(app_id) is not None or self._known.is_new(app_id)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what Batch says of a job, and SageMaker of its last attempt."""
        service = self.find(app_id)
        if service is None:
            return self._known.describe_new(app_id)
        return describe(app_id, service, self._training(app_id, service))

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe several jobs, those of one queue by its list, a hundred per call, without their replicas.

        Those that the list does not have are described one by one.
        """
        result: dict[str, DescribeAppResponse | None] = dict.fromkeys(app_ids)
        groups: dict[tuple[int, str], list[str]] = {}
        for app_id in result:
            queue, _ = names.split_queued(app_id) or ("", "")
            groups.setdefault((id(self._known.session_of(app_id)), queue), []).append(app_id)
        for (_, queue), own in groups.items():
            missing = {app_id.rpartition(":")[2]: app_id for app_id in own}
            pages = job_pages(
                self._known.session_of(own[0]), "ListServiceJobs", queue, "AFTER_CREATED_AT", "1"
            )
            for page in pages if len(own) > 1 else ():
                for job in page:
                    if app_id := missing.pop(job["jobName"], ""):
                        result[app_id] = brief(app_id, job)
                if not missing:
                    break
            result |= zip(missing.values(), for_all(self.describe, missing.values()), strict=True)
        return result

    def _training(self, app_id: str, service: ServiceJob) -> dict[str, Any] | None:
        """Describe the training job of the last attempt; None without one, or if another will follow."""
        attempts = training_jobs(service)
        training = describe_job(self._known.session_of(app_id), attempts[-1]) if attempts else None
        waits = service.get("status") in ("SUBMITTED", "PENDING", "RUNNABLE")
        return None if training is None or (waits and reasons.is_over(training)) else training

    # ---- ending

    def cancel(self, app_id: str) -> None:
        """Ask a job to end, in whatever state it is; does nothing if it has ended or does not exist."""
        service = self.find(app_id)
        if self._known.is_new(app_id) if service is None else not _is_over(service):
            self._terminate(app_id)

    def _terminate(self, app_id: str) -> None:
        job_id, session = self._known.ref(app_id).job_id, self._known.session_of(app_id)
        try:
            session.call("batch", "TerminateServiceJob", jobId=job_id, reason=cancelled_by())
        except AwsError as error:
            if error.code != "ClientException" or not _ENDED.search(error.message):
                raise

    def delete(self, app_id: str) -> None:
        """Delete the training jobs of a job, and mark it as deleted: Batch forgets it by itself, later."""
        service = self.find(app_id)
        if service is None:
            return
        if not _is_over(service):
            raise not_ended(app_id, _state_of(service))
        session = self._known.session_of(app_id)
        for name in training_jobs(service):
            if describe_job(session, name) is not None:
                session.call("sagemaker", "DeleteTrainingJob", TrainingJobName=name)
        tags = {aws_names.TAG_DELETED: str(int(time.time()))}
        session.call("batch", "TagResource", resourceArn=service["jobArn"], tags=tags)

    # ---- logs

    def training_job(self, app_id: str) -> dict[str, Any] | None:
        """Return the training job of a job's last attempt, if it has one."""
        service = self.find(app_id)
        return None if service is None else self._training(app_id, service)

    def replicas(self, service: ServiceJob, app_id: str) -> list[tuple[str, int, str]]:
        """Return role, index and host of every replica."""
        return observe.layout(_as_training_job(service, self._training(app_id, service)))

    def log_blocks(
        self, app_id: str, service: ServiceJob, replicas: Sequence[tuple[str, int]], query: LogQuery
    ) -> Iterator[LogBlock]:
        """Return the lines of several replicas, of all attempts in sequence."""
        session, job_id, known = self._known.session_of(app_id), service["jobId"], [service]

        def runs() -> Runs:
            found = known.pop() if known else _describe_service_job(session, job_id)
            if found is None:
                raise AwsError(f"AWS Batch no longer shows the job {job_id}")
            ends = {_name_of(each): each.get("stoppedAt") for each in found.get("attempts") or []}
            attempts = {name: seconds_of(ends.get(name)) for name in training_jobs(found)}
            return attempts, _is_over(found)

        return read_runs(session, self.replicas(service, app_id), replicas, runs, query)


# ---- calls


def _describe_service_job(session: AwsSession, job_id: str) -> dict[str, Any] | None:
    try:
        answer = session.call("batch", "DescribeServiceJob", jobId=job_id)
    except AwsError as error:
        if not is_missing(error):
            raise
        return None
    return answer if answer.get("jobId") else None


# ---- states


def _name_of(attempt: Mapping[str, Any]) -> str:
    return str((attempt.get("serviceResourceId") or {}).get("value", "")).rpartition("/")[2]


def training_jobs(service: ServiceJob) -> list[str]:
    """Return the names of the training jobs of all attempts so far, the oldest first."""
    attempts = [*(service.get("attempts") or []), service.get("latestAttempt") or {}]
    return list(dict.fromkeys(filter(None, map(_name_of, attempts))))


def _as_training_job(service: ServiceJob, training: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a job as SageMaker would describe it: before there is a training job, from the request."""
    if training is not None:
        return training
    try:
        request = json.loads(service.get("serviceRequestPayload") or "{}")
    except ValueError:
        request = {}
    known = request if isinstance(request, dict) else {}
    return {**known, "TrainingJobStatus": "InProgress", "SecondaryStatus": "Pending"}


def _status_of(service: ServiceJob) -> tuple[AppState, str]:
    return _MEANINGS.get(service.get("status", ""), (AppState.UNKNOWN, ""))


def _state_of(service: ServiceJob, training: Mapping[str, Any] | None = None) -> AppState:
    """Return the state of a job: Batch also calls FAILED what was stopped."""
    state, _ = _status_of(service)
    if state is not AppState.FAILED or _TIMEOUT.search(str(service.get("statusReason") or "")):
        return state
    stopped = training is not None and reasons.reason_of(training) == reasons.CANCELLED
    return AppState.CANCELLED if service.get("isTerminated") or stopped else AppState.FAILED


def _is_over(service: ServiceJob) -> bool:
    """Tell whether a job has ended, and no further attempt will follow."""
    return is_terminal(_status_of(service)[0])


def _message_of(service: ServiceJob, training: Mapping[str, Any] | None = None) -> str:
    """Return why a job is in its state."""
    said = str(service.get("statusReason") or "")
    state = _state_of(service, training)
    if state in (AppState.SUCCEEDED, AppState.UNKNOWN):
        return ""
    if not is_terminal(state):
        text = "is being stopped" if service.get("isTerminated") else _status_of(service)[1]
        past = _ended_attempts(service)
        return "; ".join(filter(None, [text, past if text else "", said if text and said != past else ""]))
    if training is not None and reasons.state_of(training) is state is AppState.FAILED:
        return reasons.message_of(training)
    return said.removeprefix(_FROM_SAGEMAKER) or ("cancelled" if state is AppState.CANCELLED else "failed")


def _ended_attempts(service: ServiceJob) -> str:
    """Return how the attempts so far ended, while another one is to come."""
    ended = [attempt for attempt in service.get("attempts") or [] if attempt.get("stoppedAt")]
    if not ended:
        return ""
    most = (service.get("retryStrategy") or {}).get("attempts", 1)
    why = str(ended[-1].get("statusReason") or "").removeprefix(_FROM_SAGEMAKER)
    return f"attempt {len(ended)} of {most} has ended" + (f": {why}" if why else "")


def describe(app_id: str, service: ServiceJob, training: Mapping[str, Any] | None) -> DescribeAppResponse:
    """Return a job as Batch describes it, with what SageMaker says of its last attempt."""
    state = _state_of(service, training)
    response = observe.describe(app_id, _as_training_job(service, training))
    response.state = state
    response.msg = _message_of(service, training)
    response.num_restarts += max(0, len(training_jobs(service)) - 1)
    response.started_at, response.ended_at = _times(service)
    response.metadata = {**response.metadata, **_facts(service)}
    response.ui_url = response.ui_url or aws_names.console_link(
        service.get("jobArn", ""), "batch/home", "jobs/service-job/detail/"
    )
    for role in response.roles_statuses:
        for replica in role.replicas:
            replica.state = state
            replica.restarts = response.num_restarts
            if not is_terminal(state):
                replica.exit_code = replica.ended_at = None
    return response


def brief(app_id: str, service: ServiceJob) -> DescribeAppResponse:
    """Return a job as the queue's list has it: its state and why, without its replicas."""
    return DescribeAppResponse(
        app_id,
        _state_of(service),
        num_restarts=max(0, len(training_jobs(service)) - 1),
        msg=_message_of(service),
        metadata=_facts(service),
        started_at=_times(service)[0],
        ended_at=_times(service)[1],
    )


def _times(service: ServiceJob) -> tuple[float | None, float | None]:
    """Return when a job's first attempt began, and when its last one ended."""
    tries = [service, *(service.get("attempts") or [])]
    starts = [seconds_of(each.get("startedAt")) for each in tries]
    return min(filter(None, starts), default=None), seconds_of(service.get("stoppedAt"))


def _facts(service: ServiceJob) -> dict[str, str]:
    facts: dict[str, Any] = {
        "batch_job": service.get("jobArn") or service.get("jobId"),
        "batch_queue": aws_names.queue_name(service.get("jobQueue") or ""),
        "batch_status": service.get("status"),
        "batch_share": service.get("shareIdentifier") or service.get("quotaShareName"),
        "batch_priority": service.get("schedulingPriority"),
        "preemptions": (service.get("preemptionSummary") or {}).get("preemptedAttemptCount"),
        "training_jobs": ", ".join(training_jobs(service)),
    }
    for number, attempt in enumerate(service.get("attempts") or [], 1):
        facts[f"attempt_{number}"] = str(attempt.get("statusReason") or "").removeprefix(_FROM_SAGEMAKER)
    return {key: str(value) for key, value in facts.items() if value not in (None, "")}


# ---- lists


def list_all(
    session: AwsSession, since: float | None, name: str, *, queue: str = "", everything: bool = False
) -> list[ListAppResponse]:
    """Return jobs that went to SageMaker directly, and those that are or were in queues."""

    def list_training() -> list[dict[str, Any]]:
        # of a queue's job every attempt is a training job, with the name that Batch gave it
        return observe.list_jobs(session, since, "" if queue else name, everything=everything)

    asked: list[Callable[[], list[Any]]] = [lambda: _queues(session, queue), list_training]
    queues, training = for_all(lambda ask: ask(), asked)
    last_attempts = {tags_of(job).get(names.TAG_QUEUED, ""): job for job in training}
    through = {app_id.rpartition(":")[0] for app_id in last_attempts} - {""}
    wanted = list(dict.fromkeys([*queues, *([] if queue else sorted(through))]))

    def passes(error: AwsError) -> bool:  # not for a queue that was asked for
        return not queue and (is_missing(error) or isinstance(error, AwsForbiddenError))

    listed = list_jobs(session, "ListServiceJobs", wanted, since, passes=passes)
    services = [(each, job) for each, job in listed if name in job["jobName"]]
    rows = _rows(session, services, training, everything=everything)
    if queue:
        return rows
    shown = {"", *(row.app_id for row in rows)}
    for app_id, job in last_attempts.items():
        if app_id not in shown:  # its queue does not show it any more
            row = observe.listed(job)
            row.app_id = app_id
            rows.append(row)
    is_attempt = _attempts_of([job for _, job in services])
    direct = [job for job in training if names.TAG_QUEUED not in tags_of(job)]
    return [*rows, *(observe.listed(job) for job in direct if not is_attempt(job["TrainingJobName"]))]


def _queues(session: AwsSession, queue: str) -> list[str]:
    """Return the names of the queues for training jobs; none if they cannot be listed."""
    if queue:
        return [queue]
    try:
        pages = session.pages("batch", "DescribeJobQueues", "jobQueues", repeats=False)
        found = [each for page in pages for each in page]
    except AwsError:  # users without queues need no access to Batch
        return []
    return [each["jobQueueName"] for each in found if each.get("jobQueueType") == TRAINING]


def _rows(
    session: AwsSession,
    services: Sequence[tuple[str, ServiceJob]],
    training: Iterable[Mapping[str, Any]],
    *,
    everything: bool,
) -> list[ListAppResponse]:
    """Return the service jobs that are ours, or all.

    The list of a queue has no tags, which say what is ours: the training jobs that were found have them, and
    jobs of which there is none yet are described.
    """
    known = {job["TrainingJobName"]: tags_of(job) for job in training}

    def tags(job: ServiceJob) -> Mapping[str, str]:
        of_attempts = [known[name] for name in training_jobs(job) if known.get(name)]
        if of_attempts or everything:
            return of_attempts[0] if of_attempts else {}
        described = _describe_service_job(session, job["jobId"]) or {}
        found: dict[str, str] = described.get("tags") or {}
        return found

    rows = []
    all_tags = for_all(tags, [job for _, job in services])
    for (queue, job), own in zip(services, all_tags, strict=True):
        if everything or aws_names.is_ours(own):
            name = job["jobName"]
            title = own.get(aws_names.TAG_APP_NAME) or name.rpartition("-")[0] or name
            row = ListAppResponse(aws_names.make_app_id(queue, name), _state_of(job), name=title)
            row.submitted_at = seconds_of(job.get("createdAt"))
            row.started_at, row.ended_at = _times(job)
            rows.append(row)
    return rows


def _attempts_of(services: Sequence[ServiceJob]) -> Callable[[str], bool]:
    """Return a function that tells by a training job's name whether it is an attempt of one of these jobs.

    Batch names attempts ``AWSBatch``, then the request's name, as far as there is room, and 32 digits.
    """
    known = [service["jobName"] for service in services]
    latest = {name for service in services for name in training_jobs(service)}

    def is_attempt(name: str) -> bool:
        made = re.fullmatch(r"AWSBatch(.+?)[0-9a-f]{32}", name)
        return name in latest or (made is not None and any(each.startswith(made[1]) for each in known))

    return is_attempt
