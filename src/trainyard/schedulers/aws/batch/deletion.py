"""Deleting what is kept of a job."""

from __future__ import annotations

from typing import Any

from trainyard.schedulers.aws.batch import names, observe
from trainyard.schedulers.aws.batch.logs import attempts_of
from trainyard.schedulers.aws.errors import AwsError
from trainyard.schedulers.aws.session import AwsSession


def delete(session: AwsSession, job: dict[str, Any]) -> None:
    """Delete the logs of a job that has ended, and leave it out of lists from now on.

    Batch has no call that deletes a job: it forgets each some days after its end. Until then a tag says that
    it was deleted.

    Raises:
        AwsError: a log or the job could not be changed; nothing is undone, and it can be tried again.
    """
    for place, detail in observe.describe_replicas(session, job):
        group = observe.log_group(place)
        for stream in attempts_of(detail):
            try:
                session.call("logs", "DeleteLogStream", logGroupName=group, logStreamName=stream.stream)
            except AwsError as error:
                if error.code != "ResourceNotFoundException":
                    raise
    session.call("batch", "TagResource", resourceArn=job["jobArn"], tags={names.TAG_DELETED: "true"})
