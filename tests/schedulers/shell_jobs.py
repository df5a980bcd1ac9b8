"""Scripts of the shell as jobs of a cluster, for the tests of its scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shunter.schedulers.api import Dependency, DescribeAppResponse
from shunter.schedulers.hpc.scheduler import HpcScheduler
from shunter.specs import AppDef, Resource, Role, is_terminal

PATIENCE = 90
#: Writes down in the job's folder, where a warning of the time limit finds it, that it has run once more; the
#: second run ends by itself.
RESUMES = (
    'n=0; at="$SHUNTER_JOB_DIR/work/n"; [ ! -e "$at" ] || read -r n <"$at"; '
    "trap 'echo $((n + 1)) >\"$at\"; echo warned; exit 0' TERM; echo run $n; "
    "[ $n = 1 ] && exit 0; sleep 600 & wait"
)
#: Runs until there is a file "go" in the job's folder.
WAITS = 'echo first; while ! [ -e "$SHUNTER_JOB_DIR/work/go" ]; do sleep 0.1; done; echo last'


def role(script: str, **fields: Any) -> Role:
    """Return a role that runs a script."""
    resource = Resource(cpu=fields.pop("cpu", 1), gpu=fields.pop("gpu", 0), memMB=fields.pop("memory", -1))
    return Role("worker", "", entrypoint="sh", args=["-c", script], resource=resource, **fields)


class ShellJobs:
    """Submits scripts to a scheduler, and cancels at the end what still runs.

    Args:
        scheduler: the scheduler.
    """

    def __init__(self, scheduler: HpcScheduler) -> None:
        self.scheduler = scheduler
        self.ids: list[str] = []

    def submit(self, *roles: Role | str, after: tuple[Dependency, ...] = (), **cfg: Any) -> str:
        """Submit a job of these roles or scripts, after others."""
        app = AppDef("job", [role(each) if isinstance(each, str) else each for each in roles])
        info = self.scheduler.submit_dryrun(app, cfg)
        if after:
            self.scheduler._depend_on(info, after)
        self.scheduler.ship(info)
        self.ids.append(self.scheduler.schedule(info))
        return self.ids[-1]

    def end_of(self, app_id: str) -> DescribeAppResponse:
        """Wait for a job's end."""
        response = self.scheduler.wait(app_id, PATIENCE)
        assert response is not None
        assert is_terminal(response.state), response
        return response

    def seen(
        self, app_id: str, wanted: Callable[[DescribeAppResponse], object], patience: float = PATIENCE
    ) -> DescribeAppResponse:
        """Wait until a job is described in some way."""
        deadline = time.monotonic() + patience
        while True:
            response = self.scheduler.describe(app_id)
            assert response is not None
            if wanted(response):
                return response
            assert time.monotonic() < deadline, response
            time.sleep(0.05)

    def lines(self, app_id: str, k: int = 0, **query: Any) -> list[str]:
        """Return the log of a replica."""
        return [line.rstrip("\n") for line in self.scheduler.log_iter(app_id, "worker", k, **query)]

    def end_all(self) -> None:
        """Cancel everything."""
        self.scheduler.cancel_many(self.ids)
