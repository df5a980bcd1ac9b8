"""A real Slurm for tests, and help for submitting shell scripts to it."""

import pytest

from shunter.schedulers.slurm_scheduler.scheduler import create_scheduler
from shunter.specs import Resource, Role
from tests import backends
from tests.schedulers.shell_jobs import ShellJobs
from tests.slurm_cluster import private_cluster, shared_cluster

SMALL = Resource(cpu=1, gpu=0, memMB=64)


class Jobs(ShellJobs):
    """Submits roles as jobs of Slurm with some options, and cancels at the test's end what still runs."""

    def __init__(self, **cfg) -> None:
        super().__init__(create_scheduler("test"))
        self.cfg = cfg

    def submit(self, *roles: Role, **cfg) -> str:
        return super().submit(*roles, **{**self.cfg, **cfg})

    def run(self, *roles: Role, **cfg):
        app_id = self.submit(*roles, **cfg)
        return app_id, self.end_of(app_id)

    def log(self, app_id: str, role: str = "r", k: int = 0, **query) -> list[str]:
        return list(self.scheduler.log_iter(app_id, role, k, **query))

    def wait_for_line(self, app_id: str, text: str, role: str = "r", k: int = 0) -> str:
        for line in self.scheduler.log_iter(app_id, role, k, should_tail=True):
            if text in line:
                return line
        raise AssertionError(f"{app_id} ended without the line {text!r}")

    def native_id(self, app_id: str) -> str:
        response = self.scheduler.describe(app_id)
        return response.metadata["native_id"]


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
