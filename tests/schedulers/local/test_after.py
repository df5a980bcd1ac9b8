"""Local jobs that wait for others (`run --after`), and jobs that go on after their time limit (`chain`)."""

import os
import signal

import pytest

from shunter.errors import ConfigError, UnknownAppException
from shunter.runner import get_runner
from shunter.schedulers.api import Stream
from shunter.specs import AppDef, AppState, RetryPolicy
from shunter.specs.submission import Submission
from tests.schedulers.local.conftest import PATIENCE, linux_only, role, wait_until


@pytest.fixture
def runner():
    with get_runner("test") as runner:
        started = []
        submitted = runner.submit

        def noted(*args, **kwargs):
            started.append(submitted(*args, **kwargs))
            return started[-1]

        runner.submit = noted
        yield runner
        for handle in started:
            status = runner.status(handle)
            if status is not None and not status.is_terminal():
                runner.cancel(handle)
                runner.wait(handle, timeout=PATIENCE)


def submit(runner, script, name="job", **fields):
    cfg = fields.pop("cfg", {})
    app = AppDef(name, [role(script)])
    return runner.submit(Submission(app=app, scheduler="local_cwd", options=cfg, **fields))


def gate(path) -> str:
    """A script that waits until there is this file."""
    return f"while [ ! -e {path} ]; do sleep 0.02; done"


def lines(runner, handle):
    return list(runner.log_lines(handle, "r"))


def waiting(runner, handle):
    status = runner.status(handle)
    return status.state is AppState.PENDING and "waits for" in status.msg


def test_a_job_starts_when_its_parents_have_succeeded(runner, tmp_path):
    first = submit(runner, gate(tmp_path / "a"), "first")
    second = submit(runner, gate(tmp_path / "b"), "second")
    child = submit(runner, f"cat {tmp_path}/a {tmp_path}/b", "child", after=[first, second])
    wait_until(lambda: waiting(runner, child), "waiting")
    status = runner.status(child)
    assert first.rpartition("/")[2] in status.msg
    assert second.rpartition("/")[2] in status.msg
    (tmp_path / "a").write_text("a\n")
    runner.wait(first)
    only = "waits for " + second.rpartition("/")[2]
    wait_until(lambda: runner.status(child).msg == only, "waiting for one")
    (tmp_path / "b").write_text("b\n")
    assert runner.wait(child, timeout=PATIENCE).state is AppState.SUCCEEDED
    assert lines(runner, child) == ["a\n", "b\n"]


@pytest.mark.parametrize("any_end", [False, True])
def test_a_failed_parent(runner, tmp_path, any_end):
    parent = submit(runner, gate(tmp_path / "go") + "; exit 3", "parent")
    child = submit(runner, "echo ran", "child", after=[parent + ":any" * any_end])
    wait_until(lambda: waiting(runner, child), "waiting")
    (tmp_path / "go").touch()
    status = runner.wait(child, timeout=PATIENCE)
    if any_end:
        assert status.state is AppState.SUCCEEDED
        assert lines(runner, child) == ["ran\n"]
        return
    assert status.state is AppState.CANCELLED
    name = parent.rpartition("/")[2]
    assert status.msg == f"never started: {name}, which it waited for, is FAILED: r/0: exit code 3"
    assert lines(runner, child) == []


def test_a_parent_that_has_ended_already(runner):
    good, bad = submit(runner, "true"), submit(runner, "false")
    for handle in (good, bad):
        runner.wait(handle, timeout=PATIENCE)
    child = submit(runner, "echo ran", after=[good, bad + ":any"])
    assert runner.wait(child, timeout=PATIENCE).state is AppState.SUCCEEDED
    with pytest.raises(ConfigError, match="FAILED, so a job that waits for its success would never start"):
        submit(runner, "true", after=[bad])
    # success is wanted by one of the two
    with pytest.raises(ConfigError, match="never start"):
        submit(runner, "true", after=[bad + ":any", bad])


def test_the_supervisor_of_the_parent_is_killed(runner, tmp_path, jobs):
    parent = submit(runner, gate(tmp_path / "never"), "parent")
    child = submit(runner, "echo ran", "child", after=[parent])
    wait_until(lambda: waiting(runner, child), "waiting")
    jobs.kill_supervisor(parent.rpartition("/")[2])
    status = runner.wait(child, timeout=PATIENCE)
    assert status.state is AppState.CANCELLED
    assert "its supervisor was killed" in status.msg


@linux_only
@pytest.mark.parametrize("any_end", [False, True])
def test_a_parent_that_is_deleted_before_its_end_is_seen(runner, tmp_path, jobs, any_end):
    parent = submit(runner, gate(tmp_path / "go"), "parent")
    child = submit(runner, "echo ran", "child", after=[parent + ":any" * any_end])
    wait_until(lambda: waiting(runner, child), "waiting")
    supervisor = jobs.state(child.rpartition("/")[2])["supervisor"][0]
    os.kill(supervisor, signal.SIGSTOP)
    (tmp_path / "go").touch()
    assert runner.wait(parent, timeout=PATIENCE).state is AppState.SUCCEEDED
    runner.delete(parent)
    os.kill(supervisor, signal.SIGCONT)
    status = runner.wait(child, timeout=PATIENCE)
    if any_end:  # only what has ended can be deleted
        assert status.state is AppState.SUCCEEDED
    else:
        assert status.state is AppState.CANCELLED
        assert "was deleted, so how it ended is not known" in status.msg


def test_a_waiting_job_can_be_cancelled_and_is_waited_for_itself(runner, tmp_path):
    parent = submit(runner, gate(tmp_path / "never"), "parent")
    child = submit(runner, "true", "child", after=[parent])
    grandchild = submit(runner, "true", "grandchild", after=[child])
    wait_until(lambda: waiting(runner, child), "waiting")
    runner.cancel(child)
    assert runner.wait(child, timeout=PATIENCE).state is AppState.CANCELLED
    assert "CANCELLED" in runner.wait(grandchild, timeout=PATIENCE).msg


def test_what_cannot_be_waited_for(runner):
    with pytest.raises(UnknownAppException):
        submit(runner, "true", after=["local_cwd://test/nothing-bcdfghjkmn"])
    with pytest.raises(
        ConfigError, match="cannot wait for aws_batch://x/q:j-bcdfghjkmn, which is on aws_batch"
    ):
        submit(runner, "true", after=["aws_batch://x/q:j-bcdfghjkmn"])


def test_the_time_limit_counts_from_the_start(runner, tmp_path):
    parent = submit(runner, gate(tmp_path / "go"), "parent")
    child = submit(runner, "exec sleep 300", "child", after=[parent], cfg={"timeout": 0.2, "grace_period": 5})
    wait_until(lambda: waiting(runner, child), "waiting")
    assert waiting(runner, child)
    (tmp_path / "go").touch()
    assert "time limit" in runner.wait(child, timeout=PATIENCE).msg


# ---- chain

STEPS = """
trap 'echo saved; exit 0' TERM
n=0; [ ! -e steps ] || read -r n <steps; n=$((n + 1)); echo $n >steps; echo attempt $n
[ $n -lt {last} ] || exit {code}
while :; do sleep 0.02; done
"""


def chained(jobs, monkeypatch, tmp_path, last, code, chain):
    monkeypatch.chdir(tmp_path)
    script = STEPS.format(last=last, code=code)
    return jobs.run(role(script), timeout=2, chain=chain, grace_period=20)


@pytest.mark.slow
@linux_only
def test_a_chain_goes_on_until_the_program_ends(jobs, monkeypatch, tmp_path):
    app_id, response = chained(jobs, monkeypatch, tmp_path, 3, 0, 5)
    assert response.state is AppState.SUCCEEDED
    assert response.num_restarts == 2
    assert jobs.log(app_id, streams=Stream.STDOUT) == [
        "attempt 1\n",
        "saved\n",
        "attempt 2\n",
        "saved\n",
        "attempt 3\n",
    ]


@linux_only
@pytest.mark.slow
def test_a_chain_ends_with_a_failure_of_the_program(jobs, monkeypatch, tmp_path):
    _, response = chained(jobs, monkeypatch, tmp_path, 2, 9, 5)
    assert response.state is AppState.FAILED
    assert response.roles_statuses[0].replicas[0].exit_code == 9
    assert response.num_restarts == 1


@linux_only
@pytest.mark.slow
def test_a_chain_has_an_end(jobs, monkeypatch, tmp_path):
    app_id, response = chained(jobs, monkeypatch, tmp_path, 99, 0, 2)
    assert response.state is AppState.FAILED
    assert response.msg == "stopped at its time limit of 2 s"
    assert jobs.log(app_id, streams=Stream.STDOUT) == ["attempt 1\n", "saved\n", "attempt 2\n", "saved\n"]


def test_a_chain_without_a_time_limit_is_refused(jobs):
    with pytest.raises(ConfigError, match="timeout=SECONDS"):
        jobs.submit(role("true"), chain=2)
    with pytest.raises(ConfigError, match="it must be from 1"):
        jobs.submit(role("true"), chain=0, timeout=1)


@pytest.mark.slow
def test_retries_are_not_used_up_by_a_chain(jobs, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    script = STEPS.format(last=2, code=9)
    app_id, response = jobs.run(
        role(script, max_retries=1, retry_policy=RetryPolicy.REPLICA), timeout=2, chain=3, grace_period=20
    )
    assert response.state is AppState.FAILED
    assert jobs.log(app_id, streams=Stream.STDOUT)[-2:] == ["attempt 2\n", "attempt 3\n"]


TRAIN = """
import os, time
folder = os.path.join(os.environ["SAGEMAKER_BASE_DIR"], "checkpoints")
os.makedirs(folder, exist_ok=True)
path = os.path.join(folder, "step")
step = int(open(path).read()) if os.path.exists(path) else 0
print("goes on from", step, flush=True)
while step < 3:
    step += 1
    with open(path + ".new", "w") as file:
        file.write(str(step))
    os.replace(path + ".new", path)
    if step < 3:
        time.sleep(600)
"""


@linux_only
@pytest.mark.slow
def test_a_script_under_the_toolkit_goes_on_from_its_checkpoint(runner, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    cfg = {"timeout": 10, "chain": 5, "grace_period": 2}
    handle = runner.run_component("train.script", {"script": "train.py"}, "local_cwd", cfg)
    assert runner.wait(handle, timeout=PATIENCE * 2).state is AppState.SUCCEEDED
    (role_name, k), *_ = runner.replicas(handle)
    said = [line for line in runner.log_lines(handle, role_name, k) if "goes on" in line]
    assert said == [f"goes on from {step}\n" for step in range(3)]
