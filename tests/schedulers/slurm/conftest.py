"""A real Slurm for tests, and help for submitting shell scripts to it."""

import time

import pytest

from tests import backends
from tests.slurm_cluster import private_cluster, shared_cluster
from trainyard.schedulers.slurm.scheduler import create_scheduler
from trainyard.specs import AppDef, Resource, Role, is_terminal

PATIENCE = 90
SMALL = Resource(cpu=1, gpu=0, memMB=64)


class Jobs:
    """Submits shell scripts as jobs, and cancels at the test's end what still runs."""

    def __init__(self, **cfg) -> None:
        self.scheduler = create_scheduler("test")
        self.cfg = cfg
        self.ids: list[str] = []

    def submit(self, *roles: Role, **cfg) -> str:
        app_id = self.scheduler.submit(AppDef("job", list(roles)), {**self.cfg, **cfg})
        self.ids.append(app_id)
        return app_id

    def end_of(self, app_id: str):
        response = self.scheduler.wait(app_id, PATIENCE)
        assert response is not None
        assert is_terminal(response.state), response
        return response

    def run(self, *roles: Role, **cfg):
        app_id = self.submit(*roles, **cfg)
        return app_id, self.end_of(app_id)

    def log(self, app_id: str, role: str = "r", k: int = 0, **query) -> list[str]:
        return list(self.scheduler.log_iter(app_id, role, k, **query))

    def wait_for_line(self, app_id: str, text: str, role: str = "r", k: int = 0) -> None:
        for line in self.scheduler.log_iter(app_id, role, k, should_tail=True):
            if text in line:
                return
        raise AssertionError(f"{app_id} ended without the line {text!r}")

    def wait_for(self, app_id: str, condition, what: str):
        deadline = time.monotonic() + PATIENCE
        while True:
            response = self.scheduler.describe(app_id)
            if response is not None and condition(response):
                return response
            assert time.monotonic() < deadline, f"{what} did not come about: {response}"
            time.sleep(0.1)

    def native_id(self, app_id: str) -> str:
        response = self.scheduler.describe(app_id)
        return response.metadata["native_id"]

    def end_all(self) -> None:
        self.scheduler.cancel_many(self.ids)


def only(*names: str):
    """Return a decorator that leaves only these tests of the suite in a class."""

    def leave(suite: type) -> type:
        for name in dir(suite):
            if name.startswith("test_") and name.removeprefix("test_") not in names:
                setattr(suite, name, None)
        assert all(getattr(suite, f"test_{name}") for name in names)
        return suite

    return leave


def role(script: str, name: str = "r", **fields) -> Role:
    fields = {"image": "", "resource": SMALL, **fields}
    return Role(name, entrypoint="sh", args=["-c", script], **fields)


@pytest.fixture
def slurm(tmp_path_factory, monkeypatch):
    """The Slurm of this test run, without accounting; nobody may break it."""
    backends.need("slurm")
    cluster = shared_cluster(tmp_path_factory)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    return cluster


@pytest.fixture
def jobs(slurm):
    jobs = Jobs()
    yield jobs
    jobs.end_all()


@pytest.fixture
def own_slurm(monkeypatch):
    """A Slurm of this test's own, which it may fill or break."""
    backends.need("slurm")
    with private_cluster(credential_seconds=10) as cluster:
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        yield cluster


@pytest.fixture
def accounted(tmp_path_factory, monkeypatch):
    """The Slurm of this test run that has an accounting database."""
    backends.need("slurm_accounting")
    cluster = shared_cluster(tmp_path_factory, accounting=True)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    return cluster
