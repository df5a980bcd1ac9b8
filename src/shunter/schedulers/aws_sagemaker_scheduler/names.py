"""Names, tags, ids and addresses of training jobs."""

from __future__ import annotations

import re

from shunter.schedulers.aws.aws_names import (
    TAG_APP_NAME,
    TAG_DELETED,
    TAG_USER,
    TAG_VERSION,
    split_app_id,
)
from shunter.schedulers.ids import random_id

BACKEND = "aws_sagemaker"
LOCAL_BACKEND = "sagemaker_local"
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
LONGEST_NAME = 63

#: Tag of the training jobs that Batch creates: the id of the job in its queue.
TAG_QUEUED = "shunter/batch-job"
OWN_TAGS = frozenset({TAG_VERSION, TAG_APP_NAME, TAG_USER, TAG_DELETED, TAG_QUEUED})

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


def split_queued(app_id: str) -> tuple[str, str] | None:
    """Return queue and name of the id of a job that goes through a Batch queue; None for other ids."""
    parts = split_app_id(app_id)
    is_queued = parts and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", parts[0]) and is_job_name(parts[1])
    return parts if is_queued else None


def default_bucket(region: str, account: str = ACCOUNT) -> str:
    """Return the name of the bucket that results and code go to by default, which the SDK uses too."""
    return f"sagemaker-{region}-{account}"
