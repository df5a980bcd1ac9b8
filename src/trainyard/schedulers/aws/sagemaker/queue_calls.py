"""Calls of AWS Batch for jobs that go through one of its queues."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainyard.backoff import Backoff
from trainyard.errors import ConfigError
from trainyard.schedulers.aws.errors import AwsError, AwsForbiddenError, AwsThrottledError
from trainyard.schedulers.aws.sagemaker.calls import CONCURRENCY, PAGE_SIZE
from trainyard.schedulers.aws.sagemaker.queue_request import SERVICE_JOB
from trainyard.schedulers.aws.session import AwsSession

Job = dict[str, Any]

ATTEMPTS = 5
FIRST_DELAY, LONGEST_DELAY = 0.5, 8.0
#: A page of a queue's list holds a hundred jobs. It is read as far as it saves calls: so many jobs that are
#: wanted are worth a page.
WORTH_A_PAGE = 4
_NOT_FOUND = re.compile(r"not found|does not exist|doesn't exist|no such|cannot find", re.I)
_ENDED = re.compile(r"already|terminal|not in a state|cannot be terminated", re.I)
_ALL_TIMES = "1"  # milliseconds since the epoch


def submit(session: AwsSession, submission: Job, training: Job) -> Job:
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
            found = _look_for(session, submission) if lost else None
            if found is not None:
                return {"jobId": found["jobId"], "jobArn": found.get("jobArn", "")}
            if not backoff.pause():  # lists lag behind
                raise


def _look_for(session: AwsSession, submission: Job) -> Job | None:
    try:
        return find_by_name(session, submission["jobQueue"], submission["jobName"])
    except AwsError:
        return None


def describe(session: AwsSession, job_id: str) -> Job | None:
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


def describe_many(session: AwsSession, queue: str, wanted: dict[str, str]) -> dict[str, Job]:
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
        return describe(session, job_id) if job_id else find_by_name(session, queue, name)

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


def list_jobs(
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
