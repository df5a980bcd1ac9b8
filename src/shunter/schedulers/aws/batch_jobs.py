"""What jobs on AWS Batch and SageMaker share: where they are, those not shown yet, times, console links."""

from __future__ import annotations

import time
from typing import NamedTuple

from shunter.schedulers.responses import DescribeAppResponse
from shunter.specs.status import AppState
from shunter.system.identity import user_name

#: How long Batch may take to show a job that it has accepted.
SETTLING_SECONDS = 60.0


class JobRef(NamedTuple):
    """Where a job is: its id, and the region and profile to reach it; "" if unknown."""

    job_id: str
    region: str = ""
    profile: str = ""
    arn: str = ""

    def to_text(self) -> str:
        """Return it as the history keeps it."""
        text = self.arn or self.job_id
        return f"{text} profile={self.profile}" if self.profile else text

    @classmethod
    def from_text(cls, text: str) -> JobRef:
        """Read what `to_text` wrote."""
        arn, _, profile = text.partition(" profile=")
        return cls.from_arn(arn, profile)

    @classmethod
    def from_arn(cls, arn: str, profile: str = "") -> JobRef:
        """Make it from a job's ARN, or its bare id."""
        if not arn.startswith("arn:") or arn.count(":") < 5:
            return cls(arn, "", profile)
        return cls(arn.rpartition("/")[2], arn.split(":")[3], profile, arn)


class JustSubmitted:
    """The jobs that this process submitted so recently that Batch may not show them yet."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def add(self, app_id: str) -> None:
        """Note a job that Batch has accepted now."""
        self._at[app_id] = time.monotonic()

    def remove(self, app_id: str) -> None:
        """Forget a job, since Batch shows it."""
        self._at.pop(app_id, None)

    def __contains__(self, app_id: str) -> bool:
        return app_id in self._at and time.monotonic() - self._at[app_id] < SETTLING_SECONDS

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the description of a job that Batch does not show: None if it does not exist."""
        if app_id not in self:
            return None
        return DescribeAppResponse(app_id, AppState.SUBMITTED, msg="AWS Batch does not show it yet")


def cancelled_by() -> str:
    """Return the reason that Batch is given when a job is cancelled."""
    return f"cancelled by {user_name()} with shunter"


def seconds_of(milliseconds: float | None) -> float | None:
    """Return a time of Batch's in seconds; None if it is not set."""
    return milliseconds / 1000 if milliseconds else None


def console_link(arn: str, page: str, fragment: str) -> str | None:
    """Return the page of AWS's console about the resource with this ARN; None if it is not an ARN."""
    parts = arn.split(":")
    if len(parts) < 6 or parts[0] != "arn":
        return None
    domains = {"aws-cn": "console.amazonaws.cn", "aws-us-gov": "console.amazonaws-us-gov.com"}
    domain, region = domains.get(parts[1], "console.aws.amazon.com"), parts[3]
    return f"https://{region}.{domain}/{page}?region={region}#{fragment}{arn.rpartition('/')[2]}"
