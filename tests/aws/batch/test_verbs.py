"""Waiting for other jobs, ending many of them, and commands in their containers."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.errors import ConfigError
from shunter.runner import Runner, get_runner
from shunter.schedulers.api import Dependency
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws_batch_scheduler.scheduler import AWSBatchScheduler
from shunter.specs import AppState
from shunter.specs.handles import parse_app_handle
from shunter.specs.submission import Submission
from tests.aws.batch.jobs import app
from tests.aws.fake import FakeAws

CFG = {"queue": "queue"}
#: Writes down how it was called.
PLUGIN = """#!/bin/sh
printf '%s\\n' "$@" >{log}
echo "$AWS_SSM_START_SESSION_RESPONSE" >>{log}
exit 5
"""


@pytest.fixture
def runner(still: FakeAws) -> Iterator[Runner]:
    with get_runner("test") as runner:
        yield runner


def native_id(aws: FakeAws, handle: str) -> str:
    name = parse_app_handle(handle).app_id.partition(":")[2]
    return next(job.id for job in aws.batch.jobs.values() if job.name == name)


# ---- waiting


def test_a_job_depends_on_others(still: FakeAws, runner: Runner) -> None:
    parents = [runner.run(app(), "aws_batch", CFG) for _ in range(2)]
    info = runner.plan(Submission(app=app(), scheduler="aws_batch", options=CFG, after=parents))
    ids = [native_id(still, parent) for parent in parents]
    assert info.request.submission["dependsOn"] == [{"jobId": job_id} for job_id in ids]
    child = runner.schedule(info)
    still.batch.finish(ids[0], 1)
    status = runner.status(child)
    assert status is not None
    assert status.state is AppState.FAILED
    assert status.msg == "a job that it depends on failed: Dependent Job failed"


def test_a_parent_that_has_succeeded_is_no_longer_needed(still: FakeAws, runner: Runner) -> None:
    good, bad = (runner.run(app(), "aws_batch", CFG) for _ in range(2))
    still.batch.finish(native_id(still, good), 0)
    still.batch.finish(native_id(still, bad), 1)
    info = runner.plan(Submission(app=app(), scheduler="aws_batch", options=CFG, after=[good, bad + ":any"]))
    assert "dependsOn" not in info.request.submission
    with pytest.raises(ConfigError, match="would never start"):
        runner.plan(Submission(app=app(), scheduler="aws_batch", options=CFG, after=[bad]))


def test_any_end_is_refused_with_what_to_do(still: FakeAws, runner: Runner) -> None:
    parent = runner.run(app(), "aws_batch", CFG)
    sent = still.count("SubmitJob")
    with pytest.raises(ConfigError, match="success of others only") as caught:
        runner.submit(Submission(app=app(), scheduler="aws_batch", options=CFG, after=[parent + ":any"]))
    assert "shunter wait" in caught.value.hint
    assert still.count("SubmitJob") == sent


def test_limits_of_dependencies(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    ids = [scheduler.submit(app(), CFG) for _ in range(21)]
    info = scheduler.submit_dryrun(app(), CFG)
    with pytest.raises(ConfigError, match="at most 20"):
        scheduler._depend_on(info, [Dependency(app_id) for app_id in ids])
    elsewhere = scheduler.submit_dryrun(app(), {**CFG, "region": "us-west-2"})
    with pytest.raises(ConfigError, match="cannot wait for it"):
        scheduler._depend_on(elsewhere, [Dependency(ids[0])])


# ---- ending many


@pytest.mark.slow
def test_fifty_jobs_are_ended_by_a_call(still: FakeAws, scheduler: AWSBatchScheduler) -> None:
    ids = [scheduler.submit(app(), CFG) for _ in range(120)]
    ended, stubborn = ids[0], ids[1]
    jobs = {job.name: job.id for job in still.batch.jobs.values()}
    still.batch.finish(jobs[ended.partition(":")[2]], 0)
    still.batch.unstoppable.add(jobs[stubborn.partition(":")[2]])
    still.calls.clear()
    found = scheduler.cancel_many([*ids, "queue:nothing-bcdfghjkmn"])
    assert [call.operation for call in still.calls if call.operation.startswith("Terminate")] == [
        "TerminateJobs"
    ] * 3
    assert still.count("DescribeJobs") == 2
    assert {app_id for app_id, error in found.items() if error} == {stubborn}
    assert isinstance(found[stubborn], AwsError)
    assert "it will not" in str(found[stubborn])
    states = {app_id: response.state for app_id, response in scheduler.describe_many(ids).items() if response}
    assert states.pop(ended) is AppState.SUCCEEDED
    assert states.pop(stubborn) is AppState.PENDING
    assert set(states.values()) == {AppState.CANCELLED}


# ---- commands in containers


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for AWS's plug-in, and return the file with its arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    log = tmp_path / "log"
    program = programs / "session-manager-plugin"
    program.write_text(PLUGIN.format(log=log))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return log


def run_one(aws: FakeAws, scheduler: AWSBatchScheduler, **cfg: object) -> str:
    app_id = scheduler.submit(app(), {**CFG, **cfg})
    aws.batch.advance(next(iter(aws.batch.jobs)), "RUNNING")
    return app_id


def test_a_command_in_a_container(still: FakeAws, scheduler: AWSBatchScheduler, plugin: Path) -> None:
    app_id = run_one(still, scheduler, exec=True)
    assert scheduler.execute(app_id, "trainer", 0, ["ls", "a b"], tty=False) == 5
    (call,) = [call for call in still.calls if call.operation == "ExecuteCommand"]
    assert call.params["command"] == "ls 'a b'"
    assert call.params["cluster"] == "cluster"
    task = call.params["task"].rpartition("/")[2]
    name, region, action, profile, target, _endpoint, response = plugin.read_text().split("\n")[:7]
    assert (name, region, action, profile) == (
        "AWS_SSM_START_SESSION_RESPONSE",
        "eu-west-1",
        "StartSession",
        "",
    )
    assert json.loads(target) == {"Target": f"ecs:cluster_{task}_r1"}
    assert json.loads(response)["TokenValue"] == "t0ken"


def test_refusals_of_commands(
    still: FakeAws, scheduler: AWSBatchScheduler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    waiting = scheduler.submit(app(), {**CFG, "exec": True})
    with pytest.raises(ConfigError, match="is not running"):
        scheduler.execute(waiting, "trainer", 0, [], tty=False)
    still.batch.advance(next(iter(still.batch.jobs)), "RUNNING")
    with pytest.raises(ConfigError, match="session-manager-plugin"):
        scheduler.execute(waiting, "trainer", 0, [], tty=False)
    still.batch.jobs.clear()
    closed = run_one(still, scheduler)
    with pytest.raises(ConfigError, match="without the option exec") as caught:
        scheduler.execute(closed, "trainer", 0, [], tty=False)
    assert "exec=true" in caught.value.hint
