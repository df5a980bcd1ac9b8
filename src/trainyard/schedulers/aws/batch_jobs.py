"""What jobs on AWS Batch and SageMaker jobs in its queues share: those it does not show yet, and times."""

from __future__ import annotations

import time

from trainyard.schedulers.responses import DescribeAppResponse
from trainyard.specs.status import AppState
from trainyard.system.identity import user_name

#: How long Batch may take to show a job that it has accepted.
SETTLING_SECONDS = 60.0


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
    return f"cancelled by {user_name()} with trainyard"


def seconds_of(milliseconds: float | None) -> float | None:
    """Return a time of Batch's in seconds; None if it is not set."""
    return milliseconds / 1000 if milliseconds else None
