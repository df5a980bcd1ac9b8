"""Deleting a job's logs, and job definitions that no job needs."""

from __future__ import annotations

import calendar
import time
from typing import Any

from shunter.schedulers.api import Leftover
from shunter.schedulers.aws import aws_names
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_batch_scheduler import observe
from shunter.schedulers.aws_batch_scheduler.logs import attempts_of


def delete(session: AwsSession, job: dict[str, Any]) -> None:
    """Delete the logs of a job that has ended, and hide it from lists.

    Batch has no call that deletes a job: it forgets jobs some days after their end. Until then a tag marks it
    as deleted.

    Raises:
        AwsError: a log or the job could not be changed; the deletion can be repeated.
    """
    for place, detail in observe.describe_replicas(session, job):
        group = observe.log_group(place)
        for stream in attempts_of(detail):
            try:
                session.call("logs", "DeleteLogStream", logGroupName=group, logStreamName=stream.stream)
            except AwsError as error:
                if error.code != "ResourceNotFoundException":
                    raise
    session.call("batch", "TagResource", resourceArn=job["jobArn"], tags={aws_names.TAG_DELETED: "true"})


#: States of jobs that have not ended.
OPEN_STATES = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")


def unused(session: AwsSession, older_than: float, queues: list[str]) -> list[Leftover]:
    """Return our definitions at least ``older_than`` seconds old that no job in these queues needs."""
    now = time.time()
    candidates = [
        Leftover(definition["jobDefinitionArn"], definition["jobDefinitionName"], now - registered)
        for page in session.pages("batch", "DescribeJobDefinitions", "jobDefinitions", status="ACTIVE")
        for definition in page
        if (registered := _registered_at(definition.get("tags", {}))) is not None
        and now - registered >= older_than
    ]
    if not candidates:
        return []
    needed = {
        job.get("jobDefinition")
        for queue in queues
        for state in OPEN_STATES
        for page in session.pages("batch", "ListJobs", "jobSummaryList", jobQueue=queue, jobStatus=state)
        for job in page
    }
    return list({each.id: each for each in candidates if each.id not in needed}.values())


def _registered_at(tags: dict[str, str]) -> float | None:
    if aws_names.TAG_CONTENT not in tags:
        return None
    try:
        return float(calendar.timegm(time.strptime(tags[aws_names.TAG_REGISTERED], "%Y-%m-%dT%H:%M:%SZ")))
    except (KeyError, ValueError):
        return None
