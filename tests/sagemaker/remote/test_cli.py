"""The whole way from the command line, and what unmodified code of boto3 sees of it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.sagemaker.remote.conftest import COMMAND_LINE, Cloud
from tests.sagemaker.remote.test_jobs import SCRIPT


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(directory)
    return directory


def shunter(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND_LINE, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


def cfg(cloud: Cloud, **more: str) -> str:
    given = {
        "role": cloud.role,
        "instance_type": "ml.m5.large",
        "output_path": f"s3://{cloud.bucket}/out",
        **more,
    }
    return ",".join(f"{key}={value}" for key, value in given.items())


@pytest.mark.slow
def test_submit_follow_status_fetch(cloud: Cloud, project: Path) -> None:
    cloud.put("data/a.csv", "1,2")
    command = [
        "run",
        "-s",
        "aws_sagemaker",
        "-cfg",
        cfg(cloud),
        "--log",
        "train.script",
        "--script",
        "train.py",
    ]
    command += ["--image", "i:1", "--channel", f"training=s3://{cloud.bucket}/data", "--num_replicas", "3"]
    command += ["--metric", "loss", "--", "--epochs", "3"]
    done = shunter(*command)
    handle = next(word for word in done.stdout.split() if word.startswith("aws_sagemaker://"))
    app_id = handle.rpartition("/")[2]
    output = done.stdout + done.stderr
    assert output.count("step=2 loss=0.333;") == 3
    status = json.loads(shunter("status", "--json", handle).stdout)
    assert status["state"] == "SUCCEEDED"
    assert [replica["hostname"] for replica in status["roles"][0]["replicas"]] == [
        "algo-1",
        "algo-2",
        "algo-3",
    ]
    assert app_id in shunter("list", "-s", "aws_sagemaker").stdout
    assert shunter("log", handle + "/train/1").stdout.count("step=") == 3
    shunter("cancel", handle)
    client = cloud.client("sagemaker")
    job = client.describe_training_job(TrainingJobName=app_id)
    assert job["TrainingJobStatus"] == "Completed"
    assert job["FinalMetricDataList"][0]["MetricName"] == "loss"
    bucket, _, key = job["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://").partition("/")
    with tarfile.open(fileobj=io.BytesIO(cloud.read(key, bucket))) as archive:
        assert any(name.endswith("model.json") for name in archive.getnames())
    logs = cloud.client("logs")
    streams = logs.describe_log_streams(
        logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix=f"{app_id}/"
    )["logStreams"]
    assert len(streams) == 3


@pytest.mark.slow
def test_a_failed_job_is_the_commands_failure(cloud: Cloud, project: Path) -> None:
    words = [
        "run",
        "-s",
        "aws_sagemaker",
        "-cfg",
        cfg(cloud),
        "--wait",
        "--workspace",
        "",
        "utils.sh",
    ]
    done = shunter(*words, "--image", "i:1", "exit", "3", code=1)
    assert "AlgorithmError" in done.stderr + done.stdout


@pytest.mark.slow
def test_the_documents_own_command(cloud: Cloud, project: Path) -> None:
    words = ["run", "-s", "aws_sagemaker", "-cfg", cfg(cloud), "--wait", "--workspace", "", "utils.echo"]
    done = shunter(*words, "--image", "alpine:latest", "--msg", "hello")
    handle = next(word for word in done.stdout.split() if word.startswith("aws_sagemaker://"))
    assert "hello" in shunter("log", handle).stdout


def test_a_dry_run_hides_secrets(cloud: Cloud, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = cfg(
        cloud, git_config=json.dumps({"repo": "https://example.com/r", "token": "ghp-secret-token"})
    )
    done = shunter(
        "run", "-s", "aws_sagemaker", "-cfg", options, "--dryrun", "train.script", "--script", "train.py",
        "--image", "i:1", "--env", "API_TOKEN=very-secret-value",
    )  # fmt: skip
    for secret in ("ghp-secret-token", "very-secret-value"):
        assert secret not in done.stdout + done.stderr
    assert "<content>" in done.stdout


def test_bad_options_are_refused_before_any_call(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    words = ["run", "-s", "aws_sagemaker", "-cfg", "role=R,instance_type=ml.m5.large,use_spot_instances=true"]
    done = shunter(*words, "train.script", "--script", "train.py", "--image", "i:1", code=3)
    assert "max_wait" in done.stderr
    assert not list(Path(os.environ["SHUNTER_HOME"]).glob("jobs/*"))
