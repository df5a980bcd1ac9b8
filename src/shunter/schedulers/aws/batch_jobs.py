"""Jobs in queues of AWS Batch, containers or training jobs: where they are, and submitting them once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from shunter.backoff import Backoff
from shunter.errors import ConfigError
from shunter.parallel import for_all
from shunter.schedulers.api import Context, DescribeAppResponse
from shunter.schedulers.aws.aws_errors import (
    AwsError,
    AwsForbiddenError,
    AwsThrottledError,
    AwsUnreachableError,
)
from shunter.schedulers.aws.session import AwsSession
from shunter.specs.status import AppState
from shunter.system.identity import user_name

#: How long Batch may take to show a job that it has accepted.
SETTLING_SECONDS = 60.0
#: The type of queues for SageMaker's training jobs, and of the jobs in them.
TRAINING = "SAGEMAKER_TRAINING"
PAGE_SIZE = 100
#: How often a request to submit a job is sent, and how often a job whose answer was lost is searched for
#: before it is sent again: lists lag behind.
ATTEMPTS, LOOKS = 5, 3
FIRST_DELAY, LONGEST_DELAY = 0.5, 8.0
_MISSING = re.compile(r"not found|does not exist|doesn't exist|no such|cannot find", re.I)


class JobRef(NamedTuple):
    """Where a job is: its id, and the region and profile to reach it; "" if unknown."""

    job_id: str
    region: str = ""
    profile: str = ""
    arn: str = ""

    def to_text(self) -> str:
        """Return it as the history keeps it."""
        text = self.arn or self.job_id
        return f"{text} profile={self.profile}" if self.profile else text

    @classmethod
    def from_text(cls, text: str) -> JobRef:
        """Read what `to_text` wrote."""
        arn, _, profile = text.partition(" profile=")
        return cls.from_arn(arn, profile)

    @classmethod
    def from_arn(cls, arn: str, profile: str = "") -> JobRef:
        """Make it from a job's ARN, or its bare id."""
        if not arn.startswith("arn:") or arn.count(":") < 5:
            return cls(arn, "", profile)
        return cls(arn.rpartition("/")[2], arn.split(":")[3], profile, arn)


class KnownJobs:
    """What this process knows of jobs: where they are, and which of them AWS may not show yet.

    Args:
        clients: clients to use instead of making them, by service.
        context: returns what the scheduler knows of history and configuration.
    """

    def __init__(self, clients: Mapping[str, Any], context: Callable[[], Context]) -> None:
        self._clients = dict(clients)
        self._context = context
        self._configured: Mapping[str, Any] | None = None
        self._sessions: dict[tuple[str, str], AwsSession] = {}
        self._refs: dict[str, JobRef] = {}
        self._submitted: dict[str, float] = {}

    def session(self, region: str | None, profile: str | None) -> AwsSession:
        """Return the session of a region and profile; by default those configured for this directory."""
        if self._configured is None and not (region and profile):
            self._configured = self._context().configured_options()
        configured = self._configured or {}
        key = (region or configured.get("region") or "", profile or configured.get("profile") or "")
        # several threads may ask for the same one
        return self._sessions.setdefault(key, AwsSession(key[0] or None, key[1] or None, self._clients))

    def close(self) -> None:
        """Close the connections; clients that were passed in stay open. May be called more than once."""
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            if not self._clients:
                session.close()

    def ref(self, app_id: str) -> JobRef:
        """Return where a job is, as far as this process or the history knows."""
        if app_id not in self._refs:
            text = self._context().native_id(app_id)
            if not text:
                return JobRef("")
            self._refs[app_id] = JobRef.from_text(text)
        return self._refs[app_id]

    def session_of(self, app_id: str) -> AwsSession:
        """Return the session by which a job is reached."""
        ref = self.ref(app_id)
        return self.session(ref.region, ref.profile)

    def remember(self, app_id: str, ref: JobRef) -> None:
        """Note where a job is."""
        self._refs[app_id] = ref

    def submitted(self, app_id: str) -> None:
        """Note a job that Batch has accepted now."""
        self._submitted[app_id] = time.monotonic()

    def shown(self, app_id: str) -> None:
        """Note that Batch shows a job."""
        self._submitted.pop(app_id, None)

    def is_new(self, app_id: str) -> bool:
        """Tell whether this process submitted a job so recently that Batch may not show it yet."""
        return time.monotonic() - self._submitted.get(app_id, -SETTLING_SECONDS) < SETTLING_SECONDS

    def describe_new(self, app_id: str) -> DescribeAppResponse | None:
        """Return the description of a job that Batch does not show: None if it does not exist."""
        if not self.is_new(app_id):
            return None
        return DescribeAppResponse(app_id, AppState.SUBMITTED, msg="AWS Batch does not show it yet")


def cancelled_by() -> str:
    """Return the reason that Batch is given when a job is cancelled."""
    return f"cancelled by {user_name()} with shunter"


def seconds_of(milliseconds: float | None) -> float | None:
    """Return a time of Batch's in seconds; None if it is not set."""
    return milliseconds / 1000 if milliseconds else None


def is_missing(error: AwsError) -> bool:
    """Tell whether Batch says that a queue or a job does not exist."""
    return error.code == "ClientException" and _MISSING.search(error.message) is not None


# ---- queues


def queue_problem(session: AwsSession, queue: str, *, training: bool = False) -> tuple[str, str] | None:
    """Return why a queue accepts no jobs, of SageMaker or of containers, and what to do; None if it does."""
    found = session.call("batch", "DescribeJobQueues", jobQueues=[queue]).get("jobQueues") or []
    if not found:
        hint = "`aws batch describe-job-queues` lists them; another region is -cfg region=..."
        return f"there is no job queue {queue} in {session.region}", hint
    kind, state, status = (found[0].get(key, "") for key in ("jobQueueType", "state", "status"))
    if (kind == TRAINING) != training:
        hint = f"A queue for training jobs has the type {TRAINING}, and a service environment."
        return f"{queue} is a job queue of the type {kind or 'ECS'}", hint
    if state == "DISABLED" or status in ("INVALID", "DELETING", "DELETED"):
        why = found[0].get("statusReason", "")
        return f"the job queue {queue} is {state}, {status}" + (f": {why}" if why else ""), "Have it enabled."
    return None


def check_queue(session: AwsSession, queue: str, *, training: bool = False) -> None:
    """Refuse a queue that accepts no jobs. Users without the permission to look may still submit.

    Raises:
        ConfigError: the queue does not exist, is of another type, disabled or invalid.
        AwsError: credentials are missing, or Batch cannot be reached.
    """
    with suppress(AwsForbiddenError):
        if problem := queue_problem(session, queue, training=training):
            raise ConfigError(f"{problem[0]}; nothing was sent", hint=problem[1])


def job_pages(
    session: AwsSession, operation: str, queue: str, filter_name: str, value: str
) -> Iterator[list[Any]]:
    """Return the jobs of a queue, in all states, a page at a time; without a filter only running ones.

    Args:
        session: the account's session.
        operation: ``ListJobs`` or ``ListServiceJobs``.
        queue: name or ARN of the queue.
        filter_name: ``JOB_NAME``, or ``AFTER_CREATED_AT`` with milliseconds.
        value: what is looked for.
    """
    filters = [{"name": filter_name, "values": [value]}]
    return session.pages(
        "batch", operation, "jobSummaryList", jobQueue=queue, filters=filters, maxResults=PAGE_SIZE
    )


def list_jobs(
    session: AwsSession,
    operation: str,
    queues: Iterable[str],
    since: float | None = None,
    *,
    passes: Callable[[AwsError], bool] = lambda error: False,
) -> list[tuple[str, dict[str, Any]]]:
    """Return the jobs of queues in all states, each once and with its queue.

    Args:
        session: the account's session.
        operation: ``ListJobs`` or ``ListServiceJobs``.
        queues: names or ARNs of the queues, which are listed at the same time.
        since: only jobs created at or after this time, seconds since the epoch.
        passes: tells whether a queue that cannot be listed is left out.
    """
    first = 1 if since is None else max(int(since * 1000), 2)
    stopped = threading.Event()

    def of_queue(queue: str) -> dict[str, tuple[str, dict[str, Any]]]:
        found: dict[str, tuple[str, dict[str, Any]]] = {}
        try:
            for page in job_pages(session, operation, queue, "AFTER_CREATED_AT", str(max(first - 1, 1))):
                recent = (job for job in page if since is None or job.get("createdAt", 0) >= first)
                found |= {job["jobId"]: (queue, job) for job in recent if not is_part(job)}
                if stopped.is_set():
                    break
        except AwsError as error:
            if not passes(error):
                raise
        return found

    answers = for_all(of_queue, queues, on_failure=stopped.set)
    return list({job_id: pair for found in answers for job_id, pair in found.items()}.values())


def is_part(job: Mapping[str, Any]) -> bool:
    """Tell whether a listed job is a child of an array, or a node."""
    return ":" in job["jobId"] or "#" in job["jobId"]


def find_by_name(session: AwsSession, operation: str, queue: str, name: str) -> list[dict[str, Any]]:
    """Return the listed jobs of this name, the oldest first; empty if the queue does not exist."""
    try:
        pages = job_pages(session, operation, queue, "JOB_NAME", name)
        found = {  # the filter ignores case, and a page may come twice
            job["jobId"]: job
            for page in pages
            for job in page
            if job.get("jobName") == name and not is_part(job)
        }
    except AwsError as error:
        if not is_missing(error):
            raise
        return []
    return sorted(found.values(), key=lambda job: job.get("createdAt", 0))


# ---- submitting


def send_once(
    send: Callable[[], dict[str, Any]], find: Callable[[], dict[str, Any] | None]
) -> dict[str, Any]:
    """Return the answer to a request, or what ``find`` returns of its job if the answer was lost.

    Raises:
        AwsError: AWS refused it, or could not be reached after several attempts.
    """
    is_lost, backoff = False, Backoff(FIRST_DELAY, LONGEST_DELAY, attempts=ATTEMPTS)
    while True:
        try:
            return send()
        except AwsError as error:
            is_lost = is_lost or error.lost_answer
            if not is_lost and not isinstance(error, (AwsThrottledError, AwsUnreachableError)):
                raise
            if is_lost and (found := _look(find)) is not None:
                return found
            if not backoff.pause():
                raise


def _look(find: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    backoff = Backoff(FIRST_DELAY, LONGEST_DELAY, jitter=0, attempts=LOOKS)
    while True:
        with suppress(AwsError):
            if (found := find()) is not None:
                return found
        if not backoff.pause():
            return None
