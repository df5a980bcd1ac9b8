"""What is true after something was killed, cut off or taken away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from tests.toolkit.image import docker

from .conftest import Bucket, Jobs, leftovers, unpack, until
from .proxy import Proxy

WAIT = "print('up', os.getpid(), flush=True)\ntime.sleep(600)"
MODEL = "open(BASE + '/model/weights', 'wb').write(os.urandom(20_000_000))"


def state_of(name: str) -> dict[str, Any]:
    state = TrainingJob.of(name).read_state()
    assert state is not None
    return state


def up(jobs: Jobs, name: str, host: str = "algo-1") -> int:
    def said() -> str:
        if not any(f"/{host}-" in stream for stream in jobs.streams(name)):
            return ""
        return next((line for line in jobs.lines(name, host) if line[:2] == "up"), "")

    line = until(said)
    return int(line.split()[1])


def test_a_job_whose_supervisor_is_gone_is_ended_by_who_looks(jobs: Jobs, processes: str, home: Path) -> None:
    """A reboot, say."""
    name = jobs.run("print('x')")["TrainingJobName"]
    job = TrainingJob.of(name)
    state = state_of(name)
    state.update(status="InProgress", secondary="Training", state="RUNNING", boot_id="another boot")
    job.write_state(state)
    described = jobs.describe(name)
    assert described["TrainingJobStatus"] == "Failed"
    assert "rebooted" in described["FailureReason"]


@pytest.mark.slow
def test_a_killed_container_fails_the_job(jobs: Jobs, containers: str, home: Path) -> None:
    name = jobs.start(WAIT)
    up(jobs, name)
    label = f"label=shunter.sagemaker.job={home}/state/sagemaker/{name}"
    docker("kill", *docker("ps", "-q", "--filter", label).stdout.split())
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Failed"
    assert ended["FailureReason"] == "AlgorithmError: ended by SIGKILL, exit code: 137"
    assert leftovers(home) == []


@pytest.mark.slow
def test_a_container_that_is_taken_away_is_this_machines_fault(
    jobs: Jobs, containers: str, home: Path
) -> None:
    """InternalServerError, and only then RetryStrategy makes a second attempt."""
    script = """
if os.path.exists(os.environ['MARK']):
    sys.exit(0)
print('up', os.getpid(), flush=True)
time.sleep(600)
"""
    name = jobs.start(
        script.replace("os.environ['MARK']", "BASE + '/input/data/script/again'"),
        RetryStrategy={"MaximumRetryAttempts": 1},
    )
    up(jobs, name)
    for code in jobs.folder.glob("code-*"):
        (code / "again").touch()
    label = f"label=shunter.sagemaker.job={home}/state/sagemaker/{name}"
    docker("rm", "-f", *docker("ps", "-q", "--filter", label).stdout.split())
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Completed", ended["SecondaryStatusTransitions"]
    steps = [step["Status"] for step in ended["SecondaryStatusTransitions"]]
    assert steps[2:5] == ["Training", "Restarting", "Downloading"]
    assert len(jobs.streams(name)) == 2


@pytest.mark.slow
def test_ctrl_c_ends_the_endpoint_and_no_job(jobs: Jobs, processes: str) -> None:
    import boto3

    words = [sys.executable, "-m", "shunter", "sagemaker-local", "serve", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip().partition("=")[2]
            client = boto3.client("sagemaker", endpoint_url=url)
            request = jobs.request("print('up', os.getpid(), flush=True); time.sleep(2)")
            client.create_training_job(**request)
            name = request["TrainingJobName"]
            up(jobs, name)
            os.killpg(server.pid, signal.SIGINT)  # as a terminal does
            assert server.wait(20) == 0
        finally:
            server.kill()
    assert jobs.end(name)["TrainingJobStatus"] == "Completed"


# ---- a store that goes away


@pytest.mark.slow
def test_an_outage_in_mid_upload_is_waited_for(
    jobs: Jobs, processes: str, bucket: Bucket, proxy: Proxy
) -> None:
    proxy.cut_after(5_000_000)
    name = jobs.start(MODEL, OutputDataConfig={"S3OutputPath": bucket.uri("out")})
    assert proxy.cut.wait(40)
    assert jobs.describe(name)["SecondaryStatus"] == "Uploading"
    assert jobs.describe(name)["ModelArtifacts"]["S3ModelArtifacts"] == ""
    assert bucket.keys("out") == []  # nothing that could be taken for a model
    proxy.restore()
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    model = unpack(bucket.get(f"out/{name}/output/model.tar.gz"))
    assert len(model["weights"]) == 20_000_000


@pytest.mark.slow
def test_an_outage_that_does_not_end_fails_the_job(
    jobs: Jobs, processes: str, bucket: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("SHUNTER_SAGEMAKER_PATIENCE_SECONDS", "1")
    proxy.cut_after(5_000_000)
    ended = jobs.run(MODEL, OutputDataConfig={"S3OutputPath": bucket.uri("out")})
    name = ended["TrainingJobName"]
    assert ended["TrainingJobStatus"] == "Failed"
    assert ended["FailureReason"].startswith("ClientError: Artifact upload failed: Cannot store s3://")
    assert ended["ModelArtifacts"]["S3ModelArtifacts"] == ""
    assert bucket.keys("out") == []
    # hours of training are not thrown away
    kept = home / "state/sagemaker" / name / "artifacts"
    assert str(kept) in ended["FailureReason"]
    assert len(unpack((kept / "model.tar.gz").read_bytes())["weights"]) == 20_000_000


@pytest.mark.slow
def test_an_outage_in_mid_download_is_waited_for(
    jobs: Jobs, processes: str, bucket: Bucket, proxy: Proxy
) -> None:
    from .conftest import file_channel

    for number in range(20):
        bucket.put(f"data/{number:02}", bytes([number]) * 100_000)
    proxy.cut_after(12_000)  # requests are small: after some of them
    script = """
for name in sorted(os.listdir(BASE + '/input/data/d')):
    data = open(BASE + '/input/data/d/' + name, 'rb').read()
    assert data == bytes([int(name)]) * 100_000, name
print(len(os.listdir(BASE + '/input/data/d')))
"""
    name = jobs.start(script, channels=[file_channel("d", bucket.uri("data"))])
    assert proxy.cut.wait(40)
    assert jobs.describe(name)["SecondaryStatus"] == "Downloading"
    proxy.restore()
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    assert jobs.lines(name) == ["20"]


def test_a_job_can_be_stopped_while_its_store_is_away(
    jobs: Jobs, processes: str, bucket: Bucket, proxy: Proxy
) -> None:
    from .conftest import file_channel

    bucket.put("data/a", b"a")
    proxy.cut_after(0)
    name = jobs.start("print('never')", channels=[file_channel("d", bucket.uri("data"))])
    assert proxy.cut.wait(40)
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    assert jobs.end(name)["TrainingJobStatus"] == "Stopped"


@pytest.mark.slow
def test_results_without_a_place_are_noticed_before_the_start(
    jobs: Jobs, processes: str, bucket: Bucket, tmp_path: Path
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a directory")
    for uri, words in (
        (f"file://{blocker}/out", str(blocker)),
        (f"s3://{bucket.name}-gone/out", f"There is no bucket {bucket.name}-gone"),
    ):
        ended = jobs.run("print('hours')", OutputDataConfig={"S3OutputPath": uri})
        assert ended["TrainingJobStatus"] == "Failed"
        assert words in ended["FailureReason"]
        assert "TrainingStartTime" not in ended


def test_a_folder_for_results_that_goes_away(jobs: Jobs, processes: str, home: Path) -> None:
    name = jobs.start(
        "print('up', os.getpid(), flush=True)\n"
        "while not os.path.exists(BASE + '/output/go'): time.sleep(0.02)"
    )
    up(jobs, name)
    jobs.out.rmdir()
    jobs.out.write_text("a file now")
    (home / "state/sagemaker" / name / "work/algo-1/output/go").touch()
    ended = jobs.end(name)
    assert ended["TrainingJobStatus"] == "Failed"
    assert "Artifact upload failed" in ended["FailureReason"]
    assert str(jobs.out) in ended["FailureReason"]
