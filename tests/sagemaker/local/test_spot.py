"""Checkpoints, and what becomes of them when the machines are taken away."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from shunter.schedulers.sagemaker_local_scheduler.scheduler import create_scheduler
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from tests.forked_command import run_shunter

from .conftest import Bucket, Jobs, until

if TYPE_CHECKING:
    from pathlib import Path

SPOT: dict[str, Any] = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 600, "MaxWaitTimeInSeconds": 1200},
}
# Counts to six, and goes on where it was.
COUNT = """
folder = BASE + '/checkpoints'
step = max([int(n.split('-')[1]) for n in os.listdir(folder) if n.startswith('step-')], default=0)
print('from', step, flush=True)
def save():
    with open(folder + '/.tmp', 'w') as file:
        file.write('x' * 1000 * step)
    os.replace(folder + '/.tmp', f'{folder}/step-{step}')
def stop(*_):
    save()
    print('saved', step, flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
while step < 6:
    step += 1
    save()
    print('step', step, flush=True)
    if step == 3:
        time.sleep(600)
open(BASE + '/model/done', 'w').write(str(step))
"""


def drill(*words: str) -> subprocess.CompletedProcess[str]:
    return run_shunter("drill", "spot", *words)


def steps(described: dict[str, Any]) -> list[str]:
    return [step["Status"] for step in described["SecondaryStatusTransitions"]]


@pytest.mark.slow
def test_a_job_goes_on_from_its_checkpoint(jobs: Jobs, mode: str, bucket: Bucket, home: Path) -> None:
    name = jobs.start(COUNT, CheckpointConfig={"S3Uri": bucket.uri("checkpoints")}, **SPOT)
    jobs.says(name, "step 3")
    done = drill(name)
    assert done.returncode == 0, done.stderr
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    assert steps(ended) == [
        *("Starting", "Downloading", "Training"),
        *("Interrupted", "Starting", "Downloading", "Training"),
        *("Uploading", "Completed"),
    ]
    assert jobs.lines(name, attempt=0) == ["from 0", "step 1", "step 2", "step 3", "saved 3"]
    assert jobs.lines(name, attempt=1) == ["from 3", "step 4", "step 5", "step 6"]
    assert bucket.keys("checkpoints") == [f"checkpoints/step-{i}" for i in range(1, 7)]
    assert jobs.artifact(name) == {"done": b"6"}


@pytest.mark.slow
def test_checkpoints_go_out_while_the_job_runs(jobs: Jobs, processes: str, bucket: Bucket) -> None:
    """Also those that are put in place by a rename; and they come back in another job."""
    config = {"S3Uri": bucket.uri("c"), "LocalPath": "/opt/ml/elsewhere"}
    script = COUNT.replace("/checkpoints'", "/elsewhere'")
    name = jobs.start(script, CheckpointConfig=config)
    until(lambda: bucket.keys("c") == ["c/step-1", "c/step-2", "c/step-3"])
    assert jobs.describe(name)["SecondaryStatus"] == "Training"
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    assert jobs.end(name)["TrainingJobStatus"] == "Stopped"
    second = jobs.run(script, CheckpointConfig=config)
    assert jobs.lines(second["TrainingJobName"])[0] == "from 3"


@pytest.mark.slow
def test_half_a_checkpoint_is_never_sent(jobs: Jobs, mode: str, bucket: Bucket) -> None:
    """The program is killed while it overwrites its checkpoint: the store keeps the whole one before."""
    script = """
path = BASE + '/checkpoints/state'
if os.path.exists(path):
    print('found', os.path.getsize(path), flush=True)
    sys.exit(0)
with open(path, 'wb') as file:
    file.write(b'A' * 500_000)
print('whole', flush=True)
while not os.path.exists(BASE + '/output/go'):
    time.sleep(0.02)
print('writing', flush=True)
while True:
    with open(path, 'wb', buffering=0) as file:
        for _ in range(50):
            file.write(b'B' * 10_000)
            time.sleep(0.004)
"""
    name = jobs.start(script, CheckpointConfig={"S3Uri": bucket.uri("half")}, **SPOT)
    jobs.says(name, "whole")
    until(lambda: bucket.keys("half") == ["half/state"])
    job = TrainingJob.of(name)
    with open(job.file("work", "algo-1", "output", "go"), "w", encoding="utf-8"):
        pass
    jobs.says(name, "writing")
    assert drill(name).returncode == 0
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    assert jobs.lines(name, attempt=1) == ["found 500000"]
    assert set(bucket.get("half/state")) == {ord("A")}


@pytest.mark.slow
def test_checkpoints_in_a_folder_of_this_machine(jobs: Jobs, mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    name = jobs.start(COUNT, CheckpointConfig={"S3Uri": folder.as_uri()}, **SPOT)
    jobs.says(name, "step 3")
    assert drill(name).returncode == 0
    assert jobs.end(name)["TrainingJobStatus"] == "Completed"
    assert jobs.lines(name, attempt=1)[0] == "from 3"
    assert sorted(path.name for path in folder.iterdir()) == [f"step-{i}" for i in range(1, 7)]


@pytest.mark.slow
def test_a_program_that_exits_with_143_was_not_killed(jobs: Jobs, processes: str, tmp_path: Path) -> None:
    """What it has written last, without renaming it, is whole."""
    script = """
path = BASE + '/checkpoints/state'
if os.path.exists(path):
    print('found', open(path).read(), flush=True)
    sys.exit(0)
def stop(*_):
    with open(path, 'w') as file:
        file.write('all')
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print('ready', flush=True)
time.sleep(600)
"""
    name = jobs.start(script, CheckpointConfig={"S3Uri": (tmp_path / "checkpoints").as_uri()}, **SPOT)
    jobs.says(name, "ready")
    assert drill(name).returncode == 0
    assert jobs.end(name)["TrainingJobStatus"] == "Completed"
    assert jobs.lines(name, attempt=1) == ["found all"]


@pytest.mark.slow
def test_there_may_be_no_machines_for_a_while(jobs: Jobs, processes: str, bucket: Bucket) -> None:
    spot = {**SPOT, "StoppingCondition": {"MaxRuntimeInSeconds": 35, "MaxWaitTimeInSeconds": 35}}
    name = jobs.start(COUNT, CheckpointConfig={"S3Uri": bucket.uri("w")}, **spot)
    jobs.says(name, "step 3")
    create_scheduler("test").interrupt(name, 600.0)  # not by a command, since the time runs already
    ended = jobs.end(name)
    assert (ended["TrainingJobStatus"], ended["SecondaryStatus"]) == ("Stopped", "MaxWaitTimeExceeded")


@pytest.mark.slow
def test_a_job_can_be_stopped_while_it_waits_for_machines(jobs: Jobs, processes: str, bucket: Bucket) -> None:
    name = jobs.start(COUNT, CheckpointConfig={"S3Uri": bucket.uri("s")}, **SPOT)
    jobs.says(name, "step 3")
    assert drill(name, "--absence", "10m").returncode == 0
    jobs.reaches(name, "Interrupted")
    until(lambda: "saved 3" in jobs.lines(name))
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    assert jobs.end(name)["TrainingJobStatus"] == "Stopped"


def test_without_jobs_there_is_no_latest_one(processes: str) -> None:
    assert drill("-").returncode == 5
