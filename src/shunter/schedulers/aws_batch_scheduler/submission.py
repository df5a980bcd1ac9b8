"""Registering a job's definition, submitting the job exactly once, and ending many of them.

Batch has no client token: a repeated ``SubmitJob`` starts a second job. So the SDK does not repeat it, and if
its answer was lost, the job is searched for by its unique name before it is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from shunter.backoff import Backoff
from shunter.errors import ConfigError, ShunterError
from shunter.parallel import for_all
from shunter.schedulers.aws.aws_errors import (
    AwsError,
    AwsForbiddenError,
    AwsThrottledError,
    AwsUnreachableError,
)
from shunter.schedulers.aws.service_model import has_operation
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_batch_scheduler import names
from shunter.schedulers.aws_batch_scheduler.observe import find_by_name

ATTEMPTS = 5
#: How many jobs one call ends, see `TerminateJobs` of the API reference.
MOST_TERMINATED = 50
FIRST_DELAY, LONGEST_DELAY = 0.5, 8.0
#: How often a job whose answer was lost is searched: lists lag behind.
LOOKS = 3
DUPLICATE = "submitted twice by shunter: its first submission is kept"


def check_queue(session: AwsSession, queue: str) -> None:
    """Check that a queue accepts jobs. Users without the permission to look may still submit.

    Raises:
        ConfigError: the queue does not exist, is disabled or invalid.
        AwsError: credentials are missing, or Batch cannot be reached.
    """
    try:
        found = session.call("batch", "DescribeJobQueues", jobQueues=[queue])["jobQueues"]
    except AwsForbiddenError:
        return
    if not found:
        raise ConfigError(
            f"there is no queue {queue} in {session.region}; nothing was sent",
            hint="`aws batch describe-job-queues` lists them; another region is -cfg region=...",
        )
    state, status = found[0].get("state"), found[0].get("status")
    if state == "DISABLED" or status in ("INVALID", "DELETING", "DELETED"):
        raise ConfigError(
            f"the queue {queue} accepts no jobs: it is {state}, {status}; nothing was sent",
            hint="Choose another: -cfg queue=NAME.",
        )


def submit_once(session: AwsSession, request: dict[str, Any]) -> dict[str, str]:
    """Submit a job; returns its ``jobId`` and ``jobArn``.

    Raises:
        AwsError: Batch refused it, or could not be reached after several attempts.
    """
    is_uncertain = False
    backoff = Backoff(FIRST_DELAY, LONGEST_DELAY, attempts=ATTEMPTS)
    while True:
        try:
            answer = session.call("batch", "SubmitJob", repeats=False, **request)
        except AwsError as error:
            may_repeat = error.lost_answer or isinstance(error, (AwsThrottledError, AwsUnreachableError))
            if error.lost_answer:
                is_uncertain = True
                found = _find_submitted(session, request)
                if found is not None:
                    return found
            if not may_repeat or not backoff.pause():
                raise
        else:
            return _the_first(session, request, answer) if is_uncertain else answer


def _find_submitted(session: AwsSession, request: dict[str, Any]) -> dict[str, str] | None:
    """Return the job that a lost submission made; None if no such job is found."""
    backoff = Backoff(FIRST_DELAY, LONGEST_DELAY, jitter=0, attempts=LOOKS)
    while True:
        try:
            found = find_by_name(session, request["jobQueue"], request["jobName"])
        except AwsError:
            found = []
        if found:
            return _ids(found[0])
        if not backoff.pause():
            return None


def _the_first(session: AwsSession, request: dict[str, Any], answer: dict[str, Any]) -> dict[str, str]:
    """Keep only the first job, if the submission whose answer was lost created one too."""
    try:
        found = find_by_name(session, request["jobQueue"], request["jobName"])
    except AwsError:
        return answer
    if len(found) < 2:
        return answer
    for job in found[1:]:
        session.call("batch", "TerminateJob", jobId=job["jobId"], reason=DUPLICATE)
    return _ids(found[0])


def _ids(job: dict[str, Any]) -> dict[str, str]:
    return {"jobId": job["jobId"], "jobArn": job.get("jobArn", "")}


def register_definition(session: AwsSession, job_def: dict[str, Any]) -> str:
    """Return the ARN of a definition with this content, registering it if necessary.

    Two processes that do this at the same time may register it twice, which is harmless.
    """
    name = job_def["jobDefinitionName"]
    digest = job_def["tags"][names.TAG_CONTENT]
    for page in session.pages(
        "batch", "DescribeJobDefinitions", "jobDefinitions", jobDefinitionName=name, status="ACTIVE"
    ):
        for found in page:
            # another process may have made a revision
            if found.get("tags", {}).get(names.TAG_CONTENT) == digest:
                return str(found["jobDefinitionArn"])
    tags = {**job_def["tags"], names.TAG_REGISTERED: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    answer = session.call("batch", "RegisterJobDefinition", **{**job_def, "tags": tags})
    return str(answer["jobDefinitionArn"])


def terminate_all(jobs: Mapping[str, tuple[AwsSession, str]], reason: str) -> dict[str, ShunterError | None]:
    """Terminate jobs: up to fifty of a queue per call, or one by one where the SDK does not know that call.

    Args:
        jobs: session and Batch's id, by app id.
        reason: what Batch keeps as the reason.

    Returns:
        by app id, why a job could not be terminated; None if it could.
    """
    groups: dict[tuple[int, str], list[str]] = {}
    for app_id, (session, _) in jobs.items():
        queue = (names.split_app_id(app_id) or ("", ""))[0]
        groups.setdefault((id(session), queue), []).append(app_id)
    # one alone needs no look at the SDK's model
    by_fifty = any(len(group) > 1 for group in groups.values()) and has_operation("batch", "TerminateJobs")
    size = MOST_TERMINATED if by_fifty else 1
    chunks = [
        group[start : start + size] for group in groups.values() for start in range(0, len(group), size)
    ]

    def terminate(chunk: list[str]) -> dict[str, ShunterError | None]:
        session, ids = jobs[chunk[0]][0], {jobs[app_id][1]: app_id for app_id in chunk}
        try:
            if len(chunk) == 1:
                session.call("batch", "TerminateJob", jobId=next(iter(ids)), reason=reason)
                return dict.fromkeys(chunk)
            answer = session.call("batch", "TerminateJobs", jobs=list(ids), reason=reason)
        except ShunterError as error:
            return dict.fromkeys(chunk, error)
        problems = {
            ids[each["job"]]: AwsError(
                f"AWS Batch did not end {ids[each['job']]}: {each.get('message') or each.get('code')}",
                operation="batch:TerminateJobs",
                code=str(each.get("code", "")),
            )
            for each in answer.get("errors") or []
            if each.get("job") in ids
        }
        return {**dict.fromkeys(chunk), **problems}

    return {app_id: error for found in for_all(terminate, chunks) for app_id, error in found.items()}
