"""Help for tests that run jobs in containers of the real daemon."""

import contextlib
import json
import os
import signal
import uuid

import pytest

from shunter.docker.command import remove_containers
from shunter.schedulers.docker_scheduler import labels
from shunter.schedulers.docker_scheduler.job import ContainerJob
from shunter.schedulers.docker_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, Role, is_terminal
from shunter.system.identity import Process
from tests.cluster_hosts import wait_until

PATIENCE = 90


class Jobs:
    """Submits shell scripts as jobs, and removes everything at the test's end."""

    def __init__(self, image: str, **kwargs) -> None:
        self.image = image
        self.session = f"test-{uuid.uuid4().hex[:12]}"
        self.scheduler = create_scheduler(self.session, **kwargs)
        self.docker = self.scheduler.docker.pinned()

    def role(self, script: str, name: str = "r", **fields) -> Role:
        fields = {"image": self.image, "entrypoint": "sh", "args": ["-c", script], **fields}
        return Role(name, **fields)

    def submit(self, *roles: Role | str, name: str = "job", **cfg) -> str:
        made = [self.role(role) if isinstance(role, str) else role for role in roles]
        return self.scheduler.submit(AppDef(name, made, {"note": "n"}), cfg)

    def dryrun(self, *roles: Role, **cfg):
        return self.scheduler.submit_dryrun(AppDef("job", list(roles)), cfg)

    def run(self, *roles: Role | str, **cfg):
        app_id = self.submit(*roles, **cfg)
        return app_id, self.end_of(app_id)

    def end_of(self, app_id: str):
        response = self.scheduler.wait(app_id, PATIENCE)
        assert response is not None
        assert is_terminal(response.state), response
        return response

    def log(self, app_id: str, role: str = "r", k: int = 0, **query) -> list[str]:
        return list(self.scheduler.log_iter(app_id, role, k, **query))

    def wait_for_line(self, app_id: str, role: str = "r", k: int = 0) -> str:
        with contextlib.closing(iter(self.scheduler.log_iter(app_id, role, k, should_tail=True))) as lines:
            return next(lines)

    def container(self, app_id: str, role: str = "r", k: int = 0) -> dict:
        name = ContainerJob.of(app_id).read_request()["hostnames"][f"{role}/{k}"]
        return self.docker.inspect("container", name)[0]

    def containers(self) -> list[dict]:
        """All containers of this test's session."""
        ids = self.docker.ids("container", labels.SESSION, self.session)
        return self.docker.inspect("container", *ids) if ids else []

    def networks(self, app_id: str) -> list[str]:
        return self.docker.ids("network", labels.APP_ID, app_id)

    def remove_all(self) -> None:
        for app_id in {container["Config"]["Labels"][labels.APP_ID] for container in self.containers()}:
            if self.scheduler.exists(app_id):
                self.scheduler.cancel(app_id)
                self.scheduler.wait(app_id, PATIENCE)
                self.scheduler.delete(app_id)
            else:
                ContainerJob.of(app_id).remove_belongings()
        remove_containers(self.docker, self.docker.ids("container", labels.SESSION, self.session))
        self.scheduler.close()


@pytest.fixture
def jobs(image):
    jobs = Jobs(image)
    yield jobs
    jobs.remove_all()


def supervisor_of(app_id: str) -> int:
    """The process that supervises a job."""
    return Process.from_json(ContainerJob.of(app_id).read_state()["supervisor"]).pid


def kill_supervisor(app_id: str) -> None:
    pid = supervisor_of(app_id)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the supervisor's end")


def states(response) -> dict[str, str]:
    return {f"{r.role}/{r.id}": r.state.name for r in response.to_status().replicas()}


def as_json(text: str):
    return json.loads(text)
