"""Help for tests that run real jobs on this machine."""

import json
import os
import signal
from pathlib import Path

import pytest

from shunter import system
from shunter.schedulers.local_scheduler.scheduler import create_scheduler
from shunter.schedulers.supervisor.job_directory import JobDirectory
from shunter.specs import AppDef, AppState, Role, is_terminal
from shunter.system import processes
from shunter.system.identity import Process
from tests.cluster_hosts import wait_until

PATIENCE = 90
#: What docs/schedulers/local_cwd.md says is weaker on other systems.
linux_only = pytest.mark.skipif(not system.HAS_SUBREAPER, reason="weaker without Linux's own primitives")


class Jobs:
    """Submits shell scripts as jobs, and ends at the test's end what still runs."""

    def __init__(self) -> None:
        self.scheduler = create_scheduler("test")
        self._ids: list[str] = []

    def submit(self, *roles: Role, **cfg) -> str:
        app_id = self.scheduler.submit(AppDef("job", list(roles)), cfg)
        self._ids.append(app_id)
        return app_id

    def run(self, *roles: Role, **cfg):
        app_id = self.submit(*roles, **cfg)
        return app_id, self.end_of(app_id)

    def end_of(self, app_id: str):
        response = self.scheduler.wait(app_id, PATIENCE)
        assert is_terminal(response.state), response
        return response

    def log(self, app_id: str, role: str = "r", k: int = 0, **query) -> list[str]:
        return list(self.scheduler.log_iter(app_id, role, k, **query))

    def wait_for_line(self, app_id: str, role: str = "r", k: int = 0) -> str:
        return next(iter(self.scheduler.log_iter(app_id, role, k, should_tail=True)))

    def state(self, app_id: str) -> dict:
        return json.loads(Path(JobDirectory.of(app_id).file("state.json")).read_text())

    def replica_pid(self, app_id: str) -> int:
        """Return the process of the first replica, which the supervisor notes after its start."""

        def noted() -> int:
            return self.state(app_id)["roles"][0]["replicas"][0]["pid"] or 0

        wait_until(noted, "the process of the replica")
        return noted()

    def kill_supervisor(self, app_id: str) -> None:
        os.kill(self.state(app_id)["supervisor"][0], signal.SIGKILL)

    def end_all(self) -> None:
        for app_id in self._ids:
            response = self.scheduler.describe(app_id)
            if response is not None and not is_terminal(response.state):
                if response.state in (AppState.UNREACHABLE, AppState.UNKNOWN):
                    continue
                self.scheduler.cancel(app_id)
                self.scheduler.wait(app_id, PATIENCE)


def role(script: str, name: str = "r", **fields) -> Role:
    return Role(name, "", entrypoint="sh", args=["-c", script], **fields)


def members(app_id: str) -> list[Process]:
    return processes.members_of_job(JobDirectory.of(app_id).path)


@pytest.fixture
def jobs():
    jobs = Jobs()
    yield jobs
    jobs.end_all()
