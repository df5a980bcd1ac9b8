"""`slurm` passes the suite that every scheduler passes, on a real Slurm."""

import os
from contextlib import closing

import pytest

from shunter.schedulers.slurm_scheduler.scheduler import create_scheduler
from shunter.specs import AppState, RetryPolicy
from shunter.testing import SchedulerConformance

from .conftest import Jobs, only, role

pytestmark = pytest.mark.timeout(400)  # with the start of a cluster that has a database


@pytest.mark.slow
class TestSlurm(SchedulerConformance):
    """On a Slurm without accounting."""

    retry_policies = tuple(RetryPolicy)
    combined_is_exact = False
    time_resolution = 1.5
    patience = 300  # other tests fill the queue

    @pytest.fixture
    def scheduler(self, slurm):
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler


#: The tests that look at states, exit codes, and who runs.
STATES = (
    "failure_with_its_exit_code",
    "one_failure_among_replicas_fails_the_job",
    "retries_are_as_many_as_asked_for",
    "job_is_listed_and_described",
    "cancel_is_idempotent",
    "delete",
)


@pytest.mark.slow
@only(*STATES)
class TestSlurmWithAccounting(SchedulerConformance):
    retry_policies = (RetryPolicy.APPLICATION,)

    @pytest.fixture
    def scheduler(self, accounted):
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler


@pytest.fixture
def forbidden(accounted, tmp_path, monkeypatch):
    """The Slurm with accounting, which this user may not ask."""
    program = tmp_path / "bin" / "sacct"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'sacct: error: Access/permission denied' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


@pytest.mark.slow
@only(*STATES)
class TestSlurmWithForbiddenAccounting(SchedulerConformance):
    retry_policies = (RetryPolicy.APPLICATION,)

    @pytest.fixture
    def scheduler(self, forbidden):
        with closing(create_scheduler("test")) as scheduler:
            yield scheduler


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slurm", "accounted", "forbidden"])
def test_state_exit_code_node_and_reason_of_every_replica(kind, request):
    request.getfixturevalue(kind)
    jobs = Jobs()
    try:
        wait = 'while [ ! -e "$SHUNTER_JOB_DIR/state/r-1.0.exit" ]; do sleep 0.1; done; '
        script = f'[ "$SHUNTER_REPLICA" = 1 ] && exit 3; {wait}kill -KILL $$$$'
        _, found = jobs.run(role(script, num_replicas=2), array=True)
        killed, failed = found.roles_statuses[0].replicas
        assert found.state == killed.state == failed.state == AppState.FAILED
        assert (killed.exit_code, killed.reason) == (137, "signal SIGKILL")
        assert (failed.exit_code, failed.reason) == (3, "exit code 3")
        assert {killed.hostname, failed.hostname} <= {"n1", "n2", "n3", "n4"}
        assert found.msg == "r/1: exit code 3"
        waiting = jobs.submit(role("true"), sbatch_args=["--begin=now+1hour"])
        held = jobs.scheduler.describe(waiting)
        assert held.state == AppState.PENDING
        assert "BeginTime" in held.msg
    finally:
        jobs.end_all()
