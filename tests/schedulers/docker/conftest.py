"""Help for tests that run jobs in containers of the real daemon."""

import contextlib
import json
import os
import signal
import time
import uuid

import pytest

from shunter.docker import image_store
from shunter.docker.engine import Engine
from shunter.schedulers.docker_scheduler.scheduler import create_scheduler
from shunter.schedulers.exec.container import inventory as docker_jobs
from shunter.schedulers.exec.container import labels
from shunter.schedulers.exec.container.inventory import remove_job
from shunter.specs import AppDef, Role, is_terminal
from tests.backends import need
from tests.toolkit.image import make_image

PATIENCE = 90


@pytest.fixture(scope="session")
def image():
    need("docker")
    tag = f"shunter-test-{uuid.uuid4().hex[:12]}:1"
    make_image(tag)
    yield tag
    engine = Engine.from_env()
    image_store.remove(engine, tag, force=True)
    engine.close()


class Jobs:
    """Submits shell scripts as jobs, and removes everything at the test's end."""

    def __init__(self, image: str, **kwargs) -> None:
        self.image = image
        self.session = f"test-{uuid.uuid4().hex[:12]}"
        self.scheduler = create_scheduler(self.session, **kwargs)

    @property
    def engine(self) -> Engine:
        return self.scheduler.engine

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
        job = docker_jobs.load_job(self.engine, app_id)
        return self.engine.request("GET", f"/containers/{job.by_replica()[role, k].id}/json")

    def containers(self) -> list[dict]:
        """All containers of this test's session."""
        filters = labels.label_filter(labels.SESSION, self.session)
        return self.engine.request("GET", "/containers/json", params={"all": True, "filters": filters})

    def networks(self, app_id: str) -> list[dict]:
        filters = labels.label_filter(labels.APP_ID, app_id)
        return self.engine.request("GET", "/networks", params={"filters": filters})

    def remove_all(self) -> None:
        for app_id in {container["Labels"][labels.APP_ID] for container in self.containers()}:
            remove_job(self.engine, app_id)
        self.scheduler.close()


@pytest.fixture
def jobs(image):
    jobs = Jobs(image)
    yield jobs
    jobs.remove_all()


def watcher_pid(app_id: str) -> int:
    """The process that watches a job; 0 if there is none."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
            if app_id.encode() in words and any(word.endswith(b"container/watcher.py") for word in words):
                return int(name)
    return 0


def signal_watcher(app_id: str, signum: int) -> int:
    """Signal the process that watches a job, once it is there."""
    pid = 0
    while not pid:  # 0 would be this test run
        wait_until(lambda: watcher_pid(app_id), "a watcher")
        pid = watcher_pid(app_id)
    os.kill(pid, signum)
    return pid


def kill_watcher(app_id: str) -> int:
    pid = signal_watcher(app_id, signal.SIGKILL)
    wait_until(lambda: watcher_pid(app_id) != pid, "the watcher's end")
    return pid


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.02)


def states(response) -> dict[str, str]:
    return {f"{r.role}/{r.id}": r.state.name for r in response.to_status().replicas()}


def as_json(text: str):
    return json.loads(text)
