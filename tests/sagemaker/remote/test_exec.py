"""Commands on the hosts of training jobs at AWS: sessions of Systems Manager."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import create_scheduler

JOB = {
    "TrainingJobName": "job-bcdfghjkmn",
    "TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:training-job/job-bcdfghjkmn",
    "TrainingJobStatus": "InProgress",
    "SecondaryStatus": "Training",
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 30},
    "Environment": {"TORCHX_ROLE_NAME": "trainer"},
}
META = SimpleNamespace(region_name="us-east-1", endpoint_url="https://ssm.us-east-1.amazonaws.com")


class Client:
    """Stands in for the clients of SageMaker and Systems Manager."""

    meta = META

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.started: list[dict[str, Any]] = []

    def describe_training_job(self, TrainingJobName: str) -> dict[str, Any]:
        return self.job

    def start_session(self, **params: Any) -> dict[str, str]:
        self.started.append(params)
        return {"SessionId": "s-1", "TokenValue": "t0ken", "StreamUrl": "wss://stream"}


def execute(job: dict[str, Any], command: list[str]) -> tuple[int, list[dict[str, Any]]]:
    client = Client(job)
    clients = {"ssm": client}
    with closing(create_scheduler("test", client, clients=clients)) as scheduler:
        return scheduler.execute("job-bcdfghjkmn", "trainer", 1, command, tty=False), client.started


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "session-manager-plugin"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" "$AWS_SSM_START_SESSION_RESPONSE" >{tmp_path}/log\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "log"


@pytest.mark.parametrize("command", [[], ["ls", "a b"]])
def test_a_session_is_begun_and_handed_to_the_plugin(plugin: Path, command: list[str]) -> None:
    code, started = execute({**JOB, "RemoteDebugConfig": {"EnableRemoteDebug": True}}, command)
    assert code == 0
    target = "sagemaker-training-job:job-bcdfghjkmn_algo-2"
    document = {"DocumentName": "AWS-StartInteractiveCommand", "Parameters": {"command": ["ls 'a b'"]}}
    assert started == [{"Target": target, **(document if command else {})}]
    words = plugin.read_text().split("\n")
    assert words[1:3] == ["us-east-1", "StartSession"]
    assert json.loads(words[4]) == {"Target": target}
    assert json.loads(words[6])["TokenValue"] == "t0ken"


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="without remote debugging") as caught:
        execute(JOB, [])
    assert "enable_remote_debug=true" in caught.value.hint
    debugged = {**JOB, "RemoteDebugConfig": {"EnableRemoteDebug": True}}
    with pytest.raises(ConfigError, match="session-manager-plugin"):
        execute(debugged, [])
    with pytest.raises(ConfigError, match="it is Downloading"):
        execute({**debugged, "SecondaryStatus": "Downloading"}, [])
