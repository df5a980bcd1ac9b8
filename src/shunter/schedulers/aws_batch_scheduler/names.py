"""Names, ids and tags of AWS Batch: queues, jobs, ARNs, and links to the console."""

from __future__ import annotations

from shunter.schedulers.aws.batch_jobs import console_link

#: Tags that say that a job or definition is ours.
TAG_VERSION = "shunter/version"
TAG_APP_NAME = "shunter/app-name"
TAG_USER = "shunter/user"
#: The digest of a job definition's content, by which it is found again, and the time of its registration.
TAG_CONTENT = "shunter/content"
TAG_REGISTERED = "shunter/registered"
#: Says that a job was deleted: Batch itself forgets jobs only days after they have ended.
TAG_DELETED = "shunter/deleted"
#: TorchX's tags, by which its jobs are recognised.
TAG_PREDECESSOR = "torchx.pytorch.org/version"
TAG_PREDECESSOR_APP_NAME = "torchx.pytorch.org/app-name"

DEFAULT_LOG_GROUP = "/aws/batch/job"


def queue_name(queue: str) -> str:
    """Return the name of a queue that is given by name or ARN."""
    return queue.rpartition("/")[2] if queue.startswith("arn:") else queue


def region_of_arn(arn: str) -> str | None:
    """Return the region of an ARN; None if it is not an ARN."""
    parts = arn.split(":")
    return parts[3] or None if len(parts) > 3 and parts[0] == "arn" else None


def make_app_id(queue: str, name: str) -> str:
    """Return the app id of a job: ``queue:name``."""
    return f"{queue_name(queue)}:{name}"


def split_app_id(app_id: str) -> tuple[str, str] | None:
    """Return queue and name of an app id; None if it has another form."""
    queue, colon, name = app_id.rpartition(":")
    return (queue, name) if colon and queue and name else None


def is_ours(tags: dict[str, str]) -> bool:
    """Tell whether a job's tags say that we or TorchX submitted it, and that it was not deleted."""
    return (TAG_VERSION in tags or TAG_PREDECESSOR in tags) and TAG_DELETED not in tags


def console_url(arn: str, kind: str) -> str | None:
    """Return where a browser shows a job that is a ``container``, ``array`` or ``multinode`` job."""
    page = {"array": "array-job", "multinode": "mnp-job"}.get(kind, "detail")
    return console_link(arn, "batch/home", f"jobs/{page}/")
