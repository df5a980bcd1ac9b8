"""The supervisor is killed at every step of a job: its state is true afterwards, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.system.identity import Process

from .conftest import Bucket, Jobs, file_channel, leftovers, until
from .test_faults import MODEL, state_of
from .test_spot import SPOT, drill

if TYPE_CHECKING:
    from .proxy import Proxy

DAEMON = "/var/run/docker.sock"
KILLED = "InternalServerError: the supervisor of this job was killed"


def kill_supervisor(name: str) -> None:
    os.kill(state_of(name)["supervisor"][0], signal.SIGKILL)


#: Hands a job over whose supervisor is slow, and dies at once.
DYING_CLIENT = """
import json, os, signal, sys
from shunter.schedulers.sagemaker_local_scheduler import job_start

class Dying(job_start.StartingSupervisor):
    def run(self, plan):
        os.kill(self.process().pid, signal.SIGSTOP)
        self._read_answer = lambda: os.kill(os.getpid(), signal.SIGKILL)
        return super().run(plan)

job_start.StartingSupervisor = Dying
job_start.start_job(json.load(sys.stdin))
"""


def test_a_client_that_dies_while_it_submits_does_not_harm_the_job(jobs: Jobs, processes: str) -> None:
    request = jobs.request("print('up')")
    name = request["TrainingJobName"]
    client = subprocess.run(
        [sys.executable, "-c", DYING_CLIENT], input=json.dumps(request), text=True, check=False
    )
    assert client.returncode == -signal.SIGKILL
    supervisor = Process.from_json((TrainingJob.of(name).read_request() or {})["supervisor"])
    assert supervisor is not None
    try:
        assert jobs.describe(name)["TrainingJobStatus"] == "InProgress"
    finally:
        os.kill(supervisor.pid, signal.SIGCONT)
    assert jobs.end(name)["TrainingJobStatus"] == "Completed"


def assert_told_and_gone(jobs: Jobs, home: Path, name: str, secrets: Path) -> None:
    """The job has failed for this reason, and has left nothing but what is known of it."""
    until(lambda: jobs.describe(name)["TrainingJobStatus"] == "Failed")
    told = jobs.describe(name)
    assert told["FailureReason"] == KILLED
    assert [step["Status"] for step in told["SecondaryStatusTransitions"]][-1] == "Failed"
    assert all("EndTime" in step for step in told["SecondaryStatusTransitions"])
    assert told["ModelArtifacts"]["S3ModelArtifacts"] == ""
    assert {host["state"] for host in hosts_of(name)} <= {"SUCCEEDED", "FAILED", "CANCELLED"}
    job = home / "state/sagemaker" / name
    assert not (job / "work").exists()
    assert not secrets.exists()
    assert str(job) not in Path("/proc/self/mountinfo").read_text()
    until(lambda: not processes_of(job))
    if os.path.exists(DAEMON):
        assert leftovers(home) == []


def hosts_of(name: str) -> list[dict[str, Any]]:
    return [host for role in state_of(name)["roles"] for host in role["replicas"]]


def processes_of(job: Path) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                f"{job}/work".encode()
                in (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
            ):
                found.append(folder.name)
        except OSError:
            continue
    return found


def secrets_of(home: Path, name: str) -> Path:
    link = home / "state/sagemaker" / name / "work/.secrets"
    until(lambda: os.path.lexists(link))
    return Path(os.readlink(link))


@pytest.mark.slow
def test_while_it_fetches(jobs: Jobs, processes: str, bucket: Bucket, proxy: Proxy, home: Path) -> None:
    bucket.put("data/a", b"a" * 1000)
    proxy.cut_after(0)
    channel = file_channel("d", bucket.uri("data"))
    name = jobs.start("print('never')", hosts=2, channels=[channel])
    assert proxy.cut.wait(40)
    jobs.reaches(name, "Downloading")
    secrets = secrets_of(home, name)
    kill_supervisor(name)
    assert_told_and_gone(jobs, home, name, secrets)
    assert "TrainingStartTime" not in jobs.describe(name)


@pytest.mark.slow
def test_while_programs_read_pipes_and_what_they_are_shown(
    jobs: Jobs, mode: str, bucket: Bucket, home: Path
) -> None:
    bucket.put("data/a", b"a" * 3_000_000)
    script = """
pipe = open(BASE + '/input/data/p_0', 'rb')
print(len(pipe.read(10)), os.listdir(BASE + '/input/data/f'), flush=True)
time.sleep(600)
"""
    channels = [
        file_channel("p", bucket.uri("data"), InputMode="Pipe"),
        file_channel("f", bucket.uri("data"), InputMode="FastFile"),
    ]
    name = jobs.start(script, hosts=2, channels=channels)
    for host in ("algo-1", "algo-2"):
        jobs.says(name, "10 ['a']", host)
    secrets = secrets_of(home, name)
    kill_supervisor(name)
    assert_told_and_gone(jobs, home, name, secrets)
    assert jobs.describe(name)["TrainingTimeInSeconds"] >= 0


@pytest.mark.slow
def test_while_it_sends_its_results(jobs: Jobs, mode: str, bucket: Bucket, proxy: Proxy, home: Path) -> None:
    proxy.cut_after(5_000_000)
    name = jobs.start(MODEL, OutputDataConfig={"S3OutputPath": bucket.uri("out")})
    assert proxy.cut.wait(40)
    jobs.reaches(name, "Uploading")
    secrets = secrets_of(home, name)
    kill_supervisor(name)
    assert_told_and_gone(jobs, home, name, secrets)
    (host,) = hosts_of(name)
    assert (host["state"], host["exit_code"]) == ("SUCCEEDED", 0)  # the program itself had ended well
    assert bucket.keys("out") == []


@pytest.mark.slow
def test_while_there_are_no_machines(jobs: Jobs, processes: str, bucket: Bucket, home: Path) -> None:
    name = jobs.start("print('up', flush=True); time.sleep(600)", **SPOT)
    jobs.says(name, "up")
    assert drill(name, "--absence", "10m").returncode == 0
    until(lambda: hosts_of(name)[0]["restarts"] == 1)
    secrets = secrets_of(home, name)
    kill_supervisor(name)
    assert_told_and_gone(jobs, home, name, secrets)
