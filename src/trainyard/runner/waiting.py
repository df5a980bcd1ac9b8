"""Waiting for the end of a job, also through times in which its scheduler cannot be reached."""

from __future__ import annotations

import time
import warnings

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
    deadline = None if timeout is None else time.monotonic() + timeout
    delay = min(FIRST_RETRY, wait_interval)
    warned = False
    while True:
        left = None if deadline is None else max(deadline - time.monotonic(), 0)
        try:
            return scheduler.wait(app_id, left)
        except (StateStoreError, AccessError):
            raise
        except (BackendError, OSError) as error:
            if left is not None and left <= delay:
                return error
            if not warned:
                warnings.warn(
                    f"{scheduler.backend} cannot be reached; still waiting for {app_id}: {error}",
                    RuntimeWarning,
                    stacklevel=4,
                )
                warned = True
        time.sleep(delay)
        delay = min(delay * 2, wait_interval)
