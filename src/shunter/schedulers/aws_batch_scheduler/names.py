"""What only jobs on Batch are named and tagged with; see `aws.aws_names`."""

from __future__ import annotations

from shunter.schedulers.aws.aws_names import console_link

#: The digest of a job definition's content, by which it is found again, and the time of its registration.
TAG_CONTENT = "shunter/content"
TAG_REGISTERED = "shunter/registered"

DEFAULT_LOG_GROUP = "/aws/batch/job"


def region_of_arn(arn: str) -> str | None:
    """Return the region of an ARN; None if it is not an ARN."""
    parts = arn.split(":")
    return parts[3] or None if len(parts) > 3 and parts[0] == "arn" else None


def console_url(arn: str, kind: str) -> str | None:
    """Return where a browser shows a job that is a ``container``, ``array`` or ``multinode`` job."""
    page = {"array": "array-job", "multinode": "mnp-job"}.get(kind, "detail")
    return console_link(arn, "batch/home", f"jobs/{page}/")
