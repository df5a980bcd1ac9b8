"""Names, tags and addresses of training jobs."""

from __future__ import annotations

import re

from trainyard.schedulers.ids import random_id

BACKEND = "aws_sagemaker"
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
LONGEST_NAME = 63

#: Tags that say that a job is ours.
TAG_VERSION = "trainyard/version"
TAG_APP_NAME = "trainyard/app-name"
TAG_USER = "trainyard/user"
#: Names the submission, so that a job whose answer was lost is known again.
TAG_TOKEN = "trainyard/client-token"
#: The job's roles in order, as name:count, for reading commands.
TAG_ROLES = "trainyard/roles"
#: Says that a job of a queue was deleted: Batch itself forgets jobs only days after they have ended.
TAG_DELETED = "trainyard/deleted"
#: The id of the job in its queue, on the training jobs that Batch makes of it.
TAG_QUEUED = "trainyard/batch-job"
OWN_TAGS = frozenset({TAG_VERSION, TAG_APP_NAME, TAG_USER, TAG_TOKEN, TAG_ROLES, TAG_QUEUED, TAG_DELETED})
#: The predecessor's, by which its jobs are known.
TAG_PREDECESSOR = "torchx.pytorch.org/version"

#: Stands for the account until somebody has asked AWS for it.
ACCOUNT = "<account>"
#: Stands for the content of a repository until it has been cloned.
CONTENT = "<content>"

_NO_TAG = re.compile(r"[^\w\s.:/=+\-@]")


def make_job_name(base: str) -> str:
    """Return a new, valid name: letters, digits and single hyphens, at most 63 of them."""
    suffix = random_id()
    text = re.sub(r"[^A-Za-z0-9]+", "-", base).strip("-")
    return f"{text[: LONGEST_NAME - len(suffix) - 1].rstrip('-') or 'job'}-{suffix}"


def is_job_name(text: str) -> bool:
    """Tell whether the service could have a job of this name."""
    return re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", text) is not None


def split_queued(app_id: str) -> tuple[str, str] | None:
    """Return queue and name of the id of a job that goes through a Batch queue; None of other ids."""
    queue, colon, name = app_id.rpartition(":")
    known = colon and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", queue) and is_job_name(name)
    return (queue, name) if known else None


def tag_value(text: str) -> str:
    """Return a text as a tag can hold it: other characters become ``_``."""
    return _NO_TAG.sub("_", text)[:256]


def default_bucket(region: str, account: str = ACCOUNT) -> str:
    """Return the name of the bucket that results and code go to by default, the one that the SDK uses."""
    return f"sagemaker-{region}-{account}"


def batch_console_url(arn: str) -> str | None:
    """Return where a browser shows a job of a Batch queue."""
    parts = arn.split(":")
    if len(parts) < 6 or parts[0] != "arn":
        return None
    region, job_id = parts[3], arn.rpartition("/")[2]
    return f"https://{region}.{_console_domain(parts[1])}/batch/home?region={region}#jobs/service-job/detail/{job_id}"


def _console_domain(partition: str) -> str:
    return {
        "aws-cn": "console.amazonaws.cn",
        "aws-us-gov": "console.amazonaws-us-gov.com",
    }.get(partition, "console.aws.amazon.com")


def console_url(arn: str) -> str | None:
    """Return where a browser shows a training job."""
    parts = arn.split(":")
    if len(parts) < 6 or parts[0] != "arn":
        return None
    domain = _console_domain(parts[1])
    region, name = parts[3], arn.rpartition("/")[2]
    return f"https://{region}.{domain}/sagemaker/home?region={region}#/jobs/{name}"
