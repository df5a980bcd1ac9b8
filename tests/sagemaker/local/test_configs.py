"""The documents of ``/opt/ml/input/config`` beside those that everybody reads, and where features write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from .test_file_systems import EFS, file_system_channel, mounted  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Bucket, Jobs

SHOW = """
folder = BASE + '/input/config/'
found = {n.removesuffix('.json'): json.load(open(folder + n)) for n in sorted(os.listdir(folder))}
made = sorted(os.path.relpath(w, BASE) for w, _, _ in os.walk(BASE + '/output'))
json.dump({'config': found, 'made': made, 'base': BASE}, open(f'{BASE}/model/{HOST}.json', 'w'))
"""
ALWAYS = {
    "hyperparameters",
    "init-config",
    "inputdataconfig",
    "metric-definition-regex",
    "resourceconfig",
    "trainingjobconfig",
    "upstreamoutputdataconfig",
}


def shown(jobs: Jobs, request: dict[str, Any]) -> dict[str, Any]:
    jobs.sagemaker.create_training_job(**request)
    ended = jobs.end(request["TrainingJobName"])
    assert ended["TrainingJobStatus"] == "Completed", ended.get("FailureReason")
    last = max(jobs.artifact(request["TrainingJobName"]).items())
    found: dict[str, Any] = json.loads(last[1])
    return found


@pytest.mark.slow
def test_a_plain_job_has_what_every_job_has(jobs: Jobs, mode: str) -> None:
    request = jobs.request(SHOW, HyperParameters={"lr": "0.1"})
    found = shown(jobs, request)
    config = found["config"]
    assert set(config) == ALWAYS
    assert found["made"] == ["output", "output/data", "output/metrics", "output/metrics/sagemaker"]
    training = config["trainingjobconfig"]
    assert training["TrainingJobName"] == request["TrainingJobName"]
    assert training["TrainingJobArn"].endswith(f"/{request['TrainingJobName']}")
    assert training["HyperParameters"] == {"lr": "0.1"}
    assert training["ResourceConfig"] == request["ResourceConfig"]
    assert training["EnableManagedSpotTraining"] is False
    assert config["init-config"]["hostConfig"] == {"clusterSize": 1, "hostNumber": 1}
    assert config["init-config"]["checkpointChannel"] is None


@pytest.mark.slow
def test_features_have_their_documents_and_directories(jobs: Jobs, processes: str, tmp_path: Path) -> None:
    metrics = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
    request = jobs.request(
        SHOW,
        hosts=2,
        AlgorithmSpecification={"MetricDefinitions": metrics},
        CheckpointConfig={"S3Uri": f"file://{tmp_path}/c", "LocalPath": "/opt/ml/mine"},
        DebugHookConfig={"S3OutputPath": "s3://bucket/debug", "CollectionConfigurations": []},
        TensorBoardOutputConfig={"S3OutputPath": "s3://bucket/board", "LocalPath": "/opt/ml/output/board"},
        ProfilerConfig={"S3OutputPath": "s3://bucket/prof", "ProfilingIntervalInMilliseconds": 500},
    )
    found = shown(jobs, request)
    config, base = found["config"], found["base"]
    more = {"checkpointconfig", "debughookconfig", "profilerconfig", "tensorboardoutputconfig"}
    assert set(config) == ALWAYS | more
    assert config["checkpointconfig"] == {"LocalPath": f"{base}/mine"}
    assert config["debughookconfig"] == {
        "S3OutputPath": "s3://bucket/debug",
        "LocalPath": f"{base}/output/tensors",
        "HookParameters": None,
        "CollectionConfigurations": [],
    }
    assert config["tensorboardoutputconfig"] == {
        "S3OutputPath": "s3://bucket/board",
        "LocalPath": f"{base}/output/board",
    }
    assert config["profilerconfig"] == request["ProfilerConfig"]
    assert config["metric-definition-regex"] == metrics
    assert {"output/tensors", "output/board", "output/profiler"} <= set(found["made"])
    init = config["init-config"]
    assert init["hostConfig"] == {"clusterSize": 2, "hostNumber": 2}
    assert init["jobRunInfo"] == {"jobRunNumber": 1}
    assert init["checkpointChannel"]["channel"]["s3DataSource"]["s3Uri"] == f"file://{tmp_path}/c"


def test_a_profiler_that_is_off_has_none(jobs: Jobs, processes: str) -> None:
    found = shown(jobs, jobs.request(SHOW, ProfilerConfig={"DisableProfiler": True}))
    assert set(found["config"]) == ALWAYS
    assert "output/profiler" not in found["made"]


def test_the_second_attempt_says_so(jobs: Jobs, processes: str, bucket: Bucket, home: Path) -> None:
    from .test_spot import SPOT, drill

    script = f"{SHOW}\nprint(found['init-config']['jobRunInfo'], flush=True)\n"
    script += "if found['init-config']['jobRunInfo']['jobRunNumber'] == 1: time.sleep(600)"
    name = jobs.start(script, **SPOT)
    jobs.says(name, "{'jobRunNumber': 1}")
    assert drill(name).returncode == 0
    assert jobs.end(name)["TrainingJobStatus"] == "Completed"
    assert jobs.lines(name) == ["{'jobRunNumber': 2}"]
