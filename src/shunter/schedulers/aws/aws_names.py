"""Names, ids and tags that jobs on Batch and on SageMaker have in common, and links to the console."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Tags that say that a job or definition is ours.
TAG_VERSION = "shunter/version"
TAG_APP_NAME = "shunter/app-name"
TAG_USER = "shunter/user"
#: Says that a job of a queue was deleted: Batch itself forgets jobs only days after they have ended.
TAG_DELETED = "shunter/deleted"
#: The digest of a job definition's content, by which it is found again, and the time of its registration.
TAG_CONTENT = "shunter/content"
TAG_REGISTERED = "shunter/registered"
#: TorchX's tags, by which its jobs are recognised.
TAG_PREDECESSOR = "torchx.pytorch.org/version"
TAG_PREDECESSOR_APP_NAME = "torchx.pytorch.org/app-name"


def is_ours(tags: Mapping[str, str]) -> bool:
    """Tell whether a job's tags say that we or TorchX submitted it, and that it was not deleted."""
    return (TAG_VERSION in tags or TAG_PREDECESSOR in tags) and TAG_DELETED not in tags


def tag_value(text: str) -> str:
    """Return a text as a tag can hold it: other characters become ``-``."""
    return re.sub(r"[^\w\s.:/=+\-@]", "-", text)[:256]


def queue_name(queue: str) -> str:
    """Return the name of a queue that is given by name or ARN."""
    return queue.rpartition("/")[2]


def make_app_id(queue: str, name: str) -> str:
    """Return the id of a job: its name, after the name of its queue if it goes through one."""
    return f"{queue_name(queue)}:{name}" if queue else name


def split_app_id(app_id: str) -> tuple[str, str] | None:
    """Return queue and name of an app id; None if it has another form."""
    queue, colon, name = app_id.rpartition(":")
    return (queue, name) if colon and queue and name else None


def region_of_arn(arn: str) -> str | None:
    """Return the region of an ARN; None if it is not an ARN."""
    parts = arn.split(":")
    return parts[3] or None if len(parts) > 3 and parts[0] == "arn" else None


def console_link(arn: str, page: str, fragment: str) -> str | None:
    """Return the page of AWS's console about the resource with this ARN; None if it is not an ARN."""
    parts = arn.split(":")
    if len(parts) < 6 or parts[0] != "arn":
        return None
    domains = {"aws-cn": "console.amazonaws.cn", "aws-us-gov": "console.amazonaws-us-gov.com"}
    domain, region = domains.get(parts[1], "console.aws.amazon.com"), parts[3]
    return f"https://{region}.{domain}/{page}?region={region}#{fragment}{arn.rpartition('/')[2]}"
