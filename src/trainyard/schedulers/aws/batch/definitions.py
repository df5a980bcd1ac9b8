"""Job definitions: one for each content, used again by every job that needs it, collected when none does.

A definition's name ends in a digest of its content, so that asking for the name tells whether it is there.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any, NamedTuple

from trainyard.schedulers.aws.batch import names
from trainyard.schedulers.aws.session import AwsSession
from trainyard.schedulers.ids import normalize

DIGEST_LENGTH = 16
#: States of jobs that have not ended.
OPEN_STATES = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")


def named(job_def: dict[str, Any], app_name: str) -> dict[str, Any]:
    """Return a definition under the name that its content gives it, and with a tag that tells the content."""
    tags = {key: value for key, value in job_def["tags"].items() if key != names.TAG_CONTENT}
    content = {key: value for key, value in job_def.items() if key != "jobDefinitionName"} | {"tags": tags}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]
    return {
        "jobDefinitionName": f"{normalize(app_name)}-{digest}",
        **content,
        "tags": {**tags, names.TAG_CONTENT: digest},
    }


def renamed(job_def: dict[str, Any]) -> dict[str, Any]:
    """Return a definition under the name of the content that it has now."""
    return named(job_def, job_def["jobDefinitionName"][: -DIGEST_LENGTH - 1])


def ensure(session: AwsSession, job_def: dict[str, Any]) -> str:
    """Return the ARN of a definition of this content, which is registered if there is none.

    Two processes that do this at the same time may register it twice, which does no harm.
    """
    name = job_def["jobDefinitionName"]
    digest = job_def["tags"][names.TAG_CONTENT]
    for page in session.pages(
        "batch", "DescribeJobDefinitions", "jobDefinitions", jobDefinitionName=name, status="ACTIVE"
    ):
        for found in page:
            # somebody may have made another revision by hand
            if found.get("tags", {}).get(names.TAG_CONTENT) == digest:
                return str(found["jobDefinitionArn"])
    tags = {**job_def["tags"], names.TAG_REGISTERED: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    answer = session.call("batch", "RegisterJobDefinition", **{**job_def, "tags": tags})
    return str(answer["jobDefinitionArn"])


class Unused(NamedTuple):
    """A job definition of ours that no job needs any more. ``age`` is in seconds."""

    arn: str
    name: str
    age: float


def unused(session: AwsSession, older_than: float, queues: list[str]) -> list[Unused]:
    """Return our definitions that were registered long enough ago and that no job still needs.

    Args:
        session: where to look.
        older_than: seconds.
        queues: all queues of the account, whose jobs are looked at.
    """
    now = time.time()
    candidates = [
        Unused(definition["jobDefinitionArn"], definition["jobDefinitionName"], now - registered)
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
    return [candidate for candidate in dict.fromkeys(candidates) if candidate.arn not in needed]


def deregister(session: AwsSession, arn: str) -> None:
    """Take a definition out of use. Jobs that were made from it are not affected."""
    session.call("batch", "DeregisterJobDefinition", jobDefinition=arn)


def _registered_at(tags: dict[str, str]) -> float | None:
    if names.TAG_CONTENT not in tags:
        return None
    import calendar

    try:
        return float(calendar.timegm(time.strptime(tags[names.TAG_REGISTERED], "%Y-%m-%dT%H:%M:%SZ")))
    except (KeyError, ValueError):
        return None
