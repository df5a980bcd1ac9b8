"""The whole requests that jobs become, as files that can be looked at; and what holds for all of them."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from shunter.components.dist import ddp
from shunter.components.train import script
from shunter.components.utils import echo
from shunter.runner.preparation import inject
from shunter.schedulers.aws_sagemaker_scheduler.container_setup import PlannedCode
from shunter.schedulers.aws_sagemaker_scheduler.options import QUEUE_OPTIONS, AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.request import check_request, make_job, settle
from shunter.specs.app import AppDef, Role

GOLDEN = Path(__file__).with_name("golden")
CODE = PlannedCode("c" * 40)
BASE: dict[str, Any] = {"role": "Training", "instance_type": "ml.m5.large", "user": "alice"}
TRAINING = {
    "channel": {
        "training": "s3://data/train?mode=FastFile&content_type=text/csv",
        "testing": "s3://data/test",
    },
    "output": "s3://results/team",
    "checkpoints": "s3://checkpoints/team",
    "metric": {"loss": "loss=([0-9.]+)"},
}
PLAN = f"arn:aws:sagemaker:us-east-1:123456789012:training-plan/{'p' * 20}"
EVERYTHING: dict[str, Any] = {
    "keep_alive_period_in_seconds": 600,
    "volume_size": 100,
    "volume_kms_key": "alias/disk",
    "max_run": 3600,
    "max_pending": 7200,
    "retry": {"node": "3", "exception": "0"},
    "input_mode": "Pipe",
    "channels": {
        "fast": "fsx://fs-0123456789abcdef0/x?mode=File",
        "training": "s3://data/m?data_type=ManifestFile&shuffle_seed=1",
    },
    "model_uri": "s3://models/m.tar.gz",
    "output_kms_key": "alias/results",
    "disable_output_compression": True,
    "checkpoint_s3_uri": "s3://checkpoints/x",
    "checkpoint_local_path": "/opt/ml/saved",
    "metric_definitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
    "enable_sagemaker_metrics": True,
    "debugger_hook_config": {
        "hook_parameters": {"save_interval": 100},
        "collection_configurations": [{"name": "losses"}],
    },
    "subnets": ["subnet-1"],
    "security_group_ids": ["sg-1"],
    "encrypt_inter_container_traffic": True,
    "enable_network_isolation": True,
    "enable_remote_debug": False,
    "enable_session_tag_chaining": True,
    "training_repository_access_mode": "Vpc",
    "training_repository_credentials_provider_arn": "arn:aws:lambda:us-east-1:123456789012:function:login",
    "environment": {"A": "1"},
    "hyperparameters": {"lr": "0.1"},
    "container_log_level": 10,
    "code_location": "s3://code/place",
    "enable_infra_check": True,
    "debugger_rules": [{"name": "Overfit", "rule_parameters": {"patience": 5}}],
    "profiler_config": {"profiling_interval_in_milliseconds": 500, "profiling_parameters": {"a": "b"}},
    "profiler_rules": [{"name": "ProfilerReport"}],
    "tensorboard_output_config": {"s3_output_path": "s3://board/x"},
    "experiment_config": {"experiment_name": "e", "trial_name": "t", "run_name": "r"},
    "instance_placement_config": {
        "enable_multiple_jobs": True,
        "placement_specifications": [{"ultra_server_id": "us-1", "instance_count": 1}],
    },
    "training_plan": PLAN,
    "mlflow_config": {
        "resource_arn": "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/one",
        "experiment_name": "e",
        "run_name": "r",
    },
    "model_package_config": {
        "model_package_group_arn": "arn:aws:sagemaker:us-east-1:123456789012:model-package-group/g",
    },
    "distribution": {"parameter_server": {"enabled": True}},
    "tags": [{"Key": "team", "Value": "ml"}],
    "base_job_name": "Nightly run",
}


def _two_roles() -> AppDef:
    roles = [
        Role("ps", "image:1", entrypoint="python", args=["ps.py"], env={"PORT": "1"}),
        Role("worker", "image:1", entrypoint="sh", args=["-c", "echo ${replica_id}\n"], num_replicas=2),
    ]
    return AppDef("two", roles, {"team": "vision"})


CASES: dict[str, tuple[AppDef, dict[str, Any], PlannedCode | None]] = {
    "echo": (echo(msg="hello", image="alpine:latest"), {}, None),
    "ddp": (ddp("--lr", "0.1", script="train.py", image="pytorch:1", j="2x4"), {}, CODE),
    "script": (
        script("--lr", "0.1", "--flag", "x y", script="train.py", image="python:3.12", **TRAINING),
        {},
        CODE,
    ),  # type: ignore[arg-type]
    "script_by_the_image": (
        script("--lr", "0.1", script="src/train.py", image="dlc:1", **TRAINING | {"metric": {"loss": None}}),
        {"toolkit": False},
        CODE,
    ),
    "mpi": (
        script(
            script="train.py", image="mpi:1", distribution="mpi", nproc=2, mpi_options="-x A", num_replicas=3
        ),
        {"instance_type": "ml.p3.16xlarge"},
        CODE,
    ),
    "roles": (_two_roles(), {}, CODE),
    "spot": (echo(image="i"), {"use_spot_instances": True, "max_run": 60, "max_wait": 120}, None),
    "archive_in_s3": (
        script(script="train.py", image="i"),
        {},
        PlannedCode("d" * 40, "s3://code/x/mine.tar.gz"),
    ),
    "everything": (script(script="train.py", image="i"), EVERYTHING, CODE),
    "preferences": (
        script(script="train.py", image="i"),
        {
            "instance_type": None,
            "instance_preferences": [
                {"type": "ml.p5.48xlarge", "count": 2, "training_plan_arns": [PLAN]},
                {"type": "ml.p4d.24xlarge", "count": 4},
            ],
        },
        CODE,
    ),
    "preferences_of_one_count": (
        script(script="run.sh", image="i", num_replicas=2, distribution="torchrun", nproc=8),
        {"instance_type": None, "instance_preferences": ["ml.p5.48xlarge", "ml.p4d.24xlarge"]},
        CODE,
    ),
    "queued": (
        script(script="train.py", image="i", max_retries=2),
        {"batch_queue": "gpu", "batch_share_identifier": "team", "batch_priority": 3, "batch_timeout": 600},
        CODE,
    ),
}


def made(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    from shunter.schedulers.aws_sagemaker_scheduler import names

    monkeypatch.setattr(names, "random_id", lambda: "xxxxxxxxxx")
    monkeypatch.setattr("shunter.__version__", "1.2.3")
    app, options, code = CASES[name]
    own = copy.deepcopy(app)
    inject(own, "aws_sagemaker", "shunter")
    for role in own.roles:
        role.env["TORCHX_INTERNAL_SESSION_ID"] = "s"
    before = copy.deepcopy(own)
    job = make_job(own, AWSSageMakerOpts(**{**BASE, **options}), code=code)
    assert own == before
    return job


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = made(name, monkeypatch)
    request = {**job.submission, "serviceRequestPayload": job.job_def} if job.submission else job.job_def
    text = json.dumps(request, indent=2) + "\n"
    path = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "UPDATE_GOLDEN=1 rewrites it"


@pytest.mark.parametrize("name", CASES)
def test_requests_are_valid_before_and_after_they_are_settled(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = made(name, monkeypatch)
    check_request(job.job_def)
    check_request(settle(job.job_def, {"<account>": "123456789012"}))


def test_everything_is_every_option() -> None:
    import dataclasses

    others = {
        *BASE, "instance_count", "instance_groups", "region", "profile", "use_spot_instances", "max_wait",
        "model_channel_name", "instance_preferences", "disable_profiler", "output_path", "source_dir",
        "git_config", "dependencies", "toolkit", "image_repo", "quiet", "batch_queue", "max_retry_attempts",
        "notify", "notify_secret", "hang_timeout", "on_hang", *QUEUE_OPTIONS,
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(AWSSageMakerOpts)} == others | set(EVERYTHING)
