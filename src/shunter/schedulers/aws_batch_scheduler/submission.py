"""Registering a job's definition, submitting the job exactly once, and ending many of them.

Batch has no client token: a repeated ``SubmitJob`` starts a second job. So the SDK does not repeat it, and if
its answer was lost, the job is searched for by its unique name before it is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from shunter.errors import ShunterError
from shunter.parallel import for_all
from shunter.schedulers.aws import aws_names
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws.batch_jobs import find_by_name, send_once
from shunter.schedulers.aws.service_model import has_operation
from shunter.schedulers.aws.session import AwsSession

#: How many jobs one call ends, see `TerminateJobs` of the API reference.
MOST_TERMINATED = 50
DUPLICATE = "submitted twice by shunter: its first submission is kept"


def submit_once(session: AwsSession, request: dict[str, Any]) -> dict[str, str]:
    """Submit a job; returns its ``jobId`` and ``jobArn``.

    Raises:
        AwsError: Batch refused it, or could not be reached after several attempts.
    """
    queue, name, sent = request["jobQueue"], request["jobName"], 0

    def send() -> dict[str, Any]:
        nonlocal sent
        sent += 1
        return session.call("batch", "SubmitJob", repeats=False, **request)

    def find() -> dict[str, Any] | None:
        found = find_by_name(session, "ListJobs", queue, name)
        return found[0] if found else None

    answer = send_once(send, find)
    return _ids(answer if sent == 1 else _the_first(session, queue, name, answer))


def _the_first(session: AwsSession, queue: str, name: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Keep only the first job of this name, if a submission whose answer was lost created one too."""
    try:
        found = find_by_name(session, "ListJobs", queue, name)
    except AwsError:
        return answer
    for job in found[1:]:
        session.call("batch", "TerminateJob", jobId=job["jobId"], reason=DUPLICATE)
    return found[0] if found else answer


def _ids(job: dict[str, Any]) -> dict[str, str]:
    return {"jobId": job["jobId"], "jobArn": job.get("jobArn", "")}


def register_definition(session: AwsSession, job_def: dict[str, Any]) -> str:
    """Return the ARN of a definition with this content, registering it if necessary.

    Two processes that do this at the same time may register it twice, which is harmless.
    """
    name = job_def["jobDefinitionName"]
    digest = job_def["tags"][aws_names.TAG_CONTENT]
    for page in session.pages(
        "batch", "DescribeJobDefinitions", "jobDefinitions", jobDefinitionName=name, status="ACTIVE"
    ):
        for found in page:
            # another process may have made a revision
            if found.get("tags", {}).get(aws_names.TAG_CONTENT) == digest:
                return str(found["jobDefinitionArn"])
    tags = {**job_def["tags"], aws_names.TAG_REGISTERED: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
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
        queue = (aws_names.split_app_id(app_id) or ("", ""))[0]
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
