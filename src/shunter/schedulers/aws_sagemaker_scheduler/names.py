"""Names, tags, ids and addresses of training jobs."""

from __future__ import annotations

import re

from shunter.schedulers.aws.batch_jobs import console_link
from shunter.schedulers.ids import random_id

BACKEND = "aws_sagemaker"
LOCAL_BACKEND = "sagemaker_local"
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
LONGEST_NAME = 63
#: The type of Batch's queues for training jobs, and of the jobs in them.
SERVICE_JOB = "SAGEMAKER_TRAINING"

#: Tags that mark a job as ours.
TAG_VERSION = "shunter/version"
TAG_APP_NAME = "shunter/app-name"
TAG_USER = "shunter/user"
#: Marks a job of a queue as deleted: Batch itself forgets jobs only days after they have ended.
TAG_DELETED = "shunter/deleted"
#: Tag of the training jobs that Batch creates: the id of the job in its queue.
TAG_QUEUED = "shunter/batch-job"
OWN_TAGS = frozenset(
    {
        *(TAG_VERSION, TAG_APP_NAME, TAG_USER, TAG_QUEUED, TAG_DELETED),
        *("shunter/client-token", "shunter/roles"),  # of AWS Batch's jobs
    }
)
#: TorchX's tag on its jobs.
TAG_PREDECESSOR = "torchx.pytorch.org/version"

#: Stands for the account until AWS has been asked for it.
ACCOUNT = "<account>"
#: Stands for the content of a repository until it has been cloned.
CONTENT = "<content>"


def make_job_name(base: str) -> str:
    """Return a new, valid name: letters, digits and single hyphens, at most 63 of them."""
    suffix = random_id()
    text = re.sub(r"[^A-Za-z0-9]+", "-", base).strip("-")
    return f"{text[: LONGEST_NAME - len(suffix) - 1].rstrip('-') or 'job'}-{suffix}"


def is_job_name(text: str) -> bool:
    """Tell whether a training job could have this name."""
    return re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", text) is not None


def queue_name(queue: str) -> str:
    """Return the name of a queue that is given by name or ARN."""
    return queue.rpartition("/")[2]


def app_id(queue: str, job_name: str) -> str:
    """Return the id of a job: its name, after the name of its queue if it goes through one."""
    return f"{queue_name(queue)}:{job_name}" if queue else job_name


def split_queued(app_id: str) -> tuple[str, str] | None:
    """Return queue and name of the id of a job that goes through a Batch queue; None for other ids."""
    queue, colon, name = app_id.rpartition(":")
    known = colon and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", queue) and is_job_name(name)
    return (queue, name) if known else None


def tag_value(text: str) -> str:
    """Return a text as a tag can hold it: other characters become ``_``."""
    return re.sub(r"[^\w\s.:/=+\-@]", "_", text)[:256]


def default_bucket(region: str, account: str = ACCOUNT) -> str:
    """Return the name of the bucket that results and code go to by default, which the SDK uses too."""
    return f"sagemaker-{region}-{account}"


def console_url(arn: str) -> str | None:
    """Return where a browser shows a training job."""
    return console_link(arn, "sagemaker/home", "/jobs/")


def batch_console_url(arn: str) -> str | None:
    """Return where a browser shows a job of a Batch queue."""
    return console_link(arn, "batch/home", "jobs/service-job/detail/")
