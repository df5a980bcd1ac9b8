"""Finding jobs: by name, and all of them.

Batch lists jobs a queue at a time, and without their tags. So the list of all jobs is as many calls as the
queues have pages of jobs, and one more for each hundred of them, whose tags tell which are ours.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainyard.schedulers.aws.batch import names
from trainyard.schedulers.aws.batch.observe import CONCURRENCY, app_state, describe_jobs, kind_of
from trainyard.schedulers.aws.batch.reasons import reason_of
from trainyard.schedulers.aws.batch.shapes import ARRAY
from trainyard.schedulers.aws.errors import AwsError
from trainyard.schedulers.aws.session import AwsSession
from trainyard.schedulers.base import ListAppResponse
from trainyard.specs.status import AppState

PAGE_SIZE = 100
_NO_QUEUE = re.compile(r"(?:does not|doesn't) exist|not found", re.IGNORECASE)
_ALL_TIMES = 1  # milliseconds since the epoch
# What `list` keeps of each job while it runs, out of all that Batch says.
_KEPT = (
    "jobId",
    "jobArn",
    "jobName",
    "createdAt",
    "status",
    "statusReason",
    "stoppedAt",
    "isCancelled",
    "isTerminated",
    "arrayProperties",
    "tags",
)


def queue_names(session: AwsSession) -> list[str]:
    """Return all job queues."""
    pages = session.pages("batch", "DescribeJobQueues", "jobQueues")
    return list(dict.fromkeys(queue["jobQueueName"] for page in pages for queue in page))


def find_by_name(session: AwsSession, queue: str, name: str) -> list[dict[str, Any]]:
    """Return the jobs of this name as the list has them, the oldest first; none if there is no such queue."""
    filters = [{"name": "JOB_NAME", "values": [name]}]
    try:
        found = {
            job["jobId"]: job
            for page in session.pages("batch", "ListJobs", "jobSummaryList", jobQueue=queue, filters=filters)
            for job in page
            if job.get("jobName") == name and not _is_part(job)  # the filter does not mind the case
        }
    except AwsError as error:
        if error.code == "ClientException" and _NO_QUEUE.search(error.message):
            return []
        raise
    return sorted(found.values(), key=lambda job: job.get("createdAt", 0))


def list_jobs(
    session: AwsSession,
    queue: str | None = None,
    states: Iterable[AppState] | None = None,
    since: float | None = None,
    everything: bool = False,
) -> list[ListAppResponse]:
    """Return the jobs of one queue or all, the oldest first.

    Args:
        session: where to look.
        queue: name or ARN of a queue; None for all queues.
        states: only jobs in these states; None for all.
        since: only jobs created at or after this time, seconds since the epoch.
        everything: also jobs that neither we nor the predecessor submitted.
    """
    wanted = None if states is None else frozenset(states)
    queues = [queue] if queue is not None else queue_names(session)
    found = {job["jobId"]: (names.queue_name(name), job) for name, job in _summaries(session, queues, since)}
    if wanted is not None:
        found = {key: pair for key, pair in found.items() if app_state_of_listed(pair[1]) & wanted}
    if not everything:
        details = describe_jobs(session, found, _kept)
        found = {
            key: (name, {**job, **details[key]})
            for key, (name, job) in found.items()
            if key in details and names.is_ours(details[key].get("tags") or {})
        }
    rows = [_row(name, job) for name, job in found.values()]
    return sorted(
        (row for row in rows if wanted is None or row.state in wanted),
        key=lambda row: row.submitted_at or 0.0,
    )


def app_state_of_listed(job: dict[str, Any]) -> frozenset[AppState]:
    """Return the states that a job may be in: of an array the list does not say how far it is."""
    state = reason_of(job).state
    if kind_of(job) == ARRAY and state is AppState.PENDING:
        return frozenset({state, AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED})
    return frozenset({state})


def _summaries(
    session: AwsSession, queues: list[str], since: float | None
) -> list[tuple[str, dict[str, Any]]]:
    # Without a filter only running jobs are listed; this one takes the place of "in whatever state".
    after = _ALL_TIMES if since is None else max(int(since * 1000) - 1, _ALL_TIMES)
    filters = [{"name": "AFTER_CREATED_AT", "values": [str(after)]}]
    stopped = threading.Event()

    def look(queue: str) -> list[tuple[str, dict[str, Any]]]:
        found = []
        for page in session.pages(
            "batch", "ListJobs", "jobSummaryList", jobQueue=queue, filters=filters, maxResults=PAGE_SIZE
        ):
            found += [(queue, _kept(job)) for job in page if not _is_part(job) and _is_since(job, since)]
            if stopped.is_set():
                break
        return found

    if len(queues) == 1:
        return look(queues[0])
    with ThreadPoolExecutor(CONCURRENCY, "list-jobs") as pool:
        try:
            return [pair for found in pool.map(look, queues) for pair in found]
        except BaseException:
            stopped.set()
            raise


def _is_since(job: dict[str, Any], since: float | None) -> bool:
    return since is None or job.get("createdAt", 0) >= int(since * 1000)


def _is_part(job: dict[str, Any]) -> bool:
    """Tell whether it is a child of an array or a node, rather than a job."""
    return ":" in job["jobId"] or "#" in job["jobId"]


def _kept(job: dict[str, Any]) -> dict[str, Any]:
    return {key: job[key] for key in _KEPT if key in job}


def _row(queue: str, job: dict[str, Any]) -> ListAppResponse:
    state, _ = app_state(job)
    tags = job.get("tags") or {}
    name = tags.get(names.TAG_APP_NAME) or tags.get(names.TAG_PREDECESSOR_APP_NAME) or job["jobName"]
    row = ListAppResponse(names.make_app_id(queue, job["jobName"]), state, name=name)
    row.submitted_at = job["createdAt"] / 1000 if job.get("createdAt") else None
    row.ended_at = job["stoppedAt"] / 1000 if job.get("stoppedAt") else None
    return row
