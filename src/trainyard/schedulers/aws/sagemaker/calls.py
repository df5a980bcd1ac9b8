"""Calls of SageMaker and CloudWatch Logs, with what their answers mean for us."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trainyard.schedulers.aws.errors import AwsError, AwsForbiddenError, AwsUnreachableError
from trainyard.schedulers.aws.sagemaker import names
from trainyard.schedulers.aws.session import AwsSession

PAGE_SIZE = 100
CONCURRENCY = 8
_NOT_FOUND = re.compile(r"not found|does not exist|could not find|couldn't find", re.I)
_NOT_ACTIVE = re.compile(r"status|not in progress|already|cannot be stopped", re.I)
_UNKNOWN_OPERATION = frozenset(
    {"UnknownOperationException", "UnknownOperation", "InvalidAction", "NotImplemented", "501", "404"}
)


def create(session: AwsSession, request: dict[str, Any]) -> str:
    """Create a job once, and return its ARN.

    A name can be used once only, so a request whose answer was lost is not repeated blindly: the job is
    looked for first.

    Raises:
        AwsError: SageMaker refused it, or could not be reached.
    """
    attempts = 3
    lost = False
    for attempt in range(attempts):
        try:
            answer = session.call("sagemaker", "CreateTrainingJob", repeats=False, **request)
            return str(_whole(answer, "CreateTrainingJob", "TrainingJobArn")["TrainingJobArn"])
        except AwsError as error:
            lost = lost or error.lost_answer
            if not lost:
                if "Throttling" in error.code and attempt + 1 < attempts:
                    continue
                raise
            found = _look_for(session, request["TrainingJobName"])
            if found is not None:
                return str(found["TrainingJobArn"])
            if attempt + 1 == attempts:
                raise
    raise AssertionError("unreachable")


def _look_for(session: AwsSession, name: str) -> dict[str, Any] | None:
    try:
        return describe_job(session, name)
    except AwsError:
        return None


def describe_job(session: AwsSession, name: str) -> dict[str, Any] | None:
    """Describe a job; None if there is none of this name.

    Raises:
        AwsError: SageMaker refuses or cannot be reached.
    """
    try:
        answer = session.call("sagemaker", "DescribeTrainingJob", TrainingJobName=name)
        return _whole(answer, "DescribeTrainingJob", "TrainingJobStatus")
    except AwsError as error:
        if error.code == "ResourceNotFound" or (
            error.code == "ValidationException" and _NOT_FOUND.search(error.message)
        ):
            return None
        raise


def _whole(answer: dict[str, Any], operation: str, member: str) -> dict[str, Any]:
    """Return an answer; one without what every answer has is none of SageMaker's (a client was handed in)."""
    if member in answer:
        return answer
    raise AwsUnreachableError(
        f"sagemaker:{operation}: the answer has no {member}",
        hint="Something between here and AWS answers in its place.",
        operation=f"sagemaker:{operation}",
        lost_answer=True,
    )


def describe_jobs(session: AwsSession, wanted: Iterable[str]) -> dict[str, dict[str, Any] | None]:
    """Describe several jobs, a few at a time: SageMaker takes one name per call."""
    jobs = list(dict.fromkeys(wanted))
    if len(jobs) <= 1:
        return {name: describe_job(session, name) for name in jobs}
    with ThreadPoolExecutor(CONCURRENCY, "describe-jobs") as pool:
        return dict(zip(jobs, pool.map(lambda name: describe_job(session, name), jobs), strict=True))


def stop(session: AwsSession, name: str) -> None:
    """Stop a job; does nothing if it has just ended."""
    try:
        session.call("sagemaker", "StopTrainingJob", TrainingJobName=name)
    except AwsError as error:
        if error.code != "ValidationException" or not _NOT_ACTIVE.search(error.message):
            raise


def log_streams(session: AwsSession, name: str) -> list[dict[str, Any]]:
    """Return the log streams of a job; none if it has not written any."""
    try:
        return [
            stream
            for page in session.pages(
                "logs",
                "DescribeLogStreams",
                "logStreams",
                logGroupName=names.LOG_GROUP,
                logStreamNamePrefix=f"{name}/",
            )
            for stream in page
        ]
    except AwsError as error:
        if error.code == "ResourceNotFoundException":
            return []
        raise


def list_jobs(
    session: AwsSession, since: float | None = None, name: str = "", everything: bool = False
) -> list[dict[str, Any]]:
    """Return jobs with their tags, the oldest first.

    Args:
        session: where to look.
        since: only jobs created at or after this time, seconds since the epoch.
        name: only jobs whose name contains this.
        everything: also jobs that neither we nor the predecessor submitted; without their tags.
    """
    if everything:
        return list(_listed(session, since, name))
    try:
        return list(_searched(session, since, name))
    except AwsForbiddenError:
        pass
    except AwsError as error:
        if error.code not in _UNKNOWN_OPERATION:
            raise
    return _tagged(session, list(_listed(session, since, name)))


def _searched(session: AwsSession, since: float | None, name: str) -> Iterator[dict[str, Any]]:
    """Find our jobs by their tags: a call for each hundred."""
    ours = [
        {"Name": f"Tags.{tag}", "Operator": "Exists"} for tag in (names.TAG_VERSION, names.TAG_PREDECESSOR)
    ]
    expression: dict[str, Any] = {"SubExpressions": [{"Filters": ours, "Operator": "Or"}], "Operator": "And"}
    filters = []
    if since is not None:
        filters.append({"Name": "CreationTime", "Operator": "GreaterThanOrEqualTo", "Value": _iso(since)})
    if name:
        filters.append({"Name": "TrainingJobName", "Operator": "Contains", "Value": name})
    if filters:
        expression["Filters"] = filters
    for page in pages_of(
        session,
        "Search",
        "Results",
        Resource="TrainingJob",
        SearchExpression=expression,
        SortBy="CreationTime",
        SortOrder="Ascending",
    ):
        yield from (result["TrainingJob"] for result in page if "TrainingJob" in result)


def _listed(session: AwsSession, since: float | None, name: str) -> Iterator[dict[str, Any]]:
    limits: dict[str, Any] = {"SortBy": "CreationTime", "SortOrder": "Ascending"}
    if since is not None:
        limits["CreationTimeAfter"] = since - 1  # it means later than, to the second
    if name:
        limits["NameContains"] = name
    for page in pages_of(session, "ListTrainingJobs", "TrainingJobSummaries", **limits):
        for job in page:
            created = job.get("CreationTime")
            if since is None or created is None or created.timestamp() >= since:
                yield job


def _tagged(session: AwsSession, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those of the jobs whose tags say that they are ours: a call for each job."""

    def tags(job: dict[str, Any]) -> list[dict[str, str]]:
        arn = job["TrainingJobArn"]
        pages = pages_of(session, "ListTags", "Tags", size=None, ResourceArn=arn)
        return [tag for page in pages for tag in page]

    with ThreadPoolExecutor(CONCURRENCY, "list-tags") as pool:
        found = [{**job, "Tags": own} for job, own in zip(jobs, pool.map(tags, jobs), strict=True)]
    return [job for job in found if is_ours(job)]


def is_ours(job: dict[str, Any]) -> bool:
    """Tell whether we, or the predecessor, submitted a job."""
    keys = {tag["Key"] for tag in job.get("Tags") or []}
    return names.TAG_VERSION in keys or names.TAG_PREDECESSOR in keys


def pages_of(
    session: AwsSession, operation: str, items: str, *, size: int | None = PAGE_SIZE, **params: Any
) -> Iterator[list[Any]]:
    """Return the items of all pages, a page at a time. An empty page is not the last."""
    seen: set[str] = set()
    if size is not None:
        params["MaxResults"] = size
    while True:
        page = session.call("sagemaker", operation, **params)
        yield page.get(items) or []
        token = page.get("NextToken")
        if not token:
            return
        if token in seen:
            raise AwsError(
                f"sagemaker:{operation} does not come to an end: it gives the same page again",
                hint="Try again; if it stays so, AWS or what stands between has a defect.",
            )
        seen.add(token)
        params["NextToken"] = token


def _iso(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
