"""Waiting for the end of a job, also through times in which its scheduler cannot be reached."""

from __future__ import annotations

import warnings

from trainyard.backoff import Backoff
from trainyard.errors import AccessError, BackendError, StateStoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.schedulers.base import DescribeAppResponse, Scheduler

FIRST_RETRY = 0.25


def wait(
    scheduler: Scheduler[Any], app_id: str, wait_interval: float, timeout: float | None
) -> DescribeAppResponse | Exception | None:
    """Return the job as it is when it has ended or the time is over.

    A scheduler that cannot be reached is tried again, less and less often; that it failed is warned of
    once. The error is returned only when it lasts until the time is over.

    Raises:
        StateStoreError: the jobs of this machine cannot be read, which does not pass by itself.
        AccessError: the credentials are refused, nor does that.
    """
    backoff = Backoff(min(FIRST_RETRY, wait_interval), wait_interval, jitter=0, limit=timeout).start()
    warned = False
    while True:
        try:
            return scheduler.wait(app_id, backoff.left())
        except (StateStoreError, AccessError):
            raise
        except (BackendError, OSError) as error:
            if not warned:
                warnings.warn(
                    f"{scheduler.backend} cannot be reached; still waiting for {app_id}: {error}",
                    RuntimeWarning,
                    stacklevel=4,
                )
                warned = True
            if not backoff.pause():
                return error
