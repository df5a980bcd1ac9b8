"""Documented rules between members of a request: in the options' words, and by the endpoint in its own."""

from __future__ import annotations

from typing import Any

import pytest

from shunter.errors import InvalidRunConfigException
from shunter.schedulers.aws_sagemaker_scheduler import request_rules
from shunter.schedulers.aws_sagemaker_scheduler.container_setup import PlannedCode
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.request import check_request, make_job, settle
from shunter.schedulers.sagemaker_local_scheduler import request_validation
from shunter.schedulers.sagemaker_local_scheduler.request_validation import ApiError
from shunter.specs.app import AppDef, Role
from tests import backends

ROLE = "arn:aws:iam::123456789012:role/Training"
GROUPS = [{"name": "a", "type": "ml.m5.large", "count": 1}, {"name": "b", "type": "ml.g5.xlarge", "count": 1}]
VPC = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}
LUSTRE = "fsx://fs-0123456789abcdef0/fsx/data"

#: Options, what is said of them, and what the endpoint says of the request.
RULES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "file systems are no streams",
        {"channels": {"data": f"{LUSTRE}?mode=FastFile"}, **VPC},
        "the channel 'data' is a file system, which needs the input mode File, not FastFile",
        "the channel 'data' is a file system, which needs the input mode File, not FastFile",
    ),
    (
        "file systems are no streams, by the job's mode",
        {"channels": {"data": LUSTRE}, "input_mode": "Pipe", **VPC},
        "the channel 'data' is a file system, which needs the input mode File, not Pipe",
        "the channel 'data' is a file system, which needs the input mode File, not Pipe",
    ),
    (
        "augmented manifests",
        {"channels": {"data": "s3://b/m?data_type=AugmentedManifestFile&attributes=a&mode=FastFile"}},
        "the channel 'data' is an augmented manifest, which the input mode FastFile cannot read",
        "the channel 'data' is an augmented manifest, which the input mode FastFile cannot read",
    ),
    (
        "compression",
        {"channels": {"data": "s3://b/d?compression=Gzip"}},
        "the channel 'data' has compression Gzip, which is for the input mode Pipe, not File",
        "the channel 'data' has CompressionType Gzip, which is for the input mode Pipe, not File",
    ),
    (
        "compression, by the job's mode",
        {"channels": {"data": "s3://b/d?compression=Gzip"}, "input_mode": "FastFile"},
        "the channel 'data' has compression Gzip, which is for the input mode Pipe, not FastFile",
        "the channel 'data' has CompressionType Gzip, which is for the input mode Pipe, not FastFile",
    ),
    (
        "records",
        {"channels": {"data": "s3://b/d?record_wrapper=RecordIO"}},
        "the channel 'data' has record_wrapper RecordIO, which is not for the input mode File",
        "the channel 'data' has RecordWrapperType RecordIO, which is not for the input mode File",
    ),
    (
        "models",
        {"channels": {"m": "s3://b/m?content_type=application/x-sagemaker-model&mode=Pipe"}},
        "the channel 'm' is a model by its content_type, which needs the input mode File, not Pipe",
        "the channel 'm' is a model by its ContentType, which needs the input mode File, not Pipe",
    ),
    *(
        (
            f"checkpoints in {path}",
            {"checkpoint_s3_uri": "s3://b/c", "checkpoint_local_path": path},
            f"checkpoint_local_path is {path}, where the platform puts the job's input",
            f"LocalPath is {path}, where the platform puts the job's input",
        )
        for path in ("/opt/ml/input", "/opt/ml/./input/data/c", "/opt/ml/", "//opt", "/")
    ),
    (
        "checkpoints outside",
        {"checkpoint_s3_uri": "s3://b/c", "checkpoint_local_path": "/opt/ml/../../x"},
        "checkpoint_local_path must not contain '..', but it is '/opt/ml/../../x'",
        "LocalPath must not contain '..', but it is '/opt/ml/../../x'",
    ),
    (
        "channels outside",
        {"channels": {"..": "s3://b/d"}},
        "a channel cannot be named '..': its name becomes a directory",
        "a channel cannot be named '..': its name becomes a directory",
    ),
    (
        "checkpoints nowhere",
        {"checkpoint_s3_uri": "s3://b/c", "checkpoint_local_path": "ckpt"},
        "checkpoint_local_path must be absolute, such as /opt/ml/checkpoints, not 'ckpt'",
        "LocalPath must be absolute, such as /opt/ml/checkpoints, not 'ckpt'",
    ),
]


def made(options: dict[str, Any]) -> dict[str, Any]:
    app = AppDef("job", [Role("train", "image:1", entrypoint="python", args=["train.py"])])
    given = {"role": ROLE, "instance_type": "ml.m5.large", "output_path": "s3://results/x", **options}
    return make_job(app, AWSSageMakerOpts(**given), code=PlannedCode("k")).job_def


@pytest.mark.parametrize(
    ("options", "said", "answered"), [rule[1:] for rule in RULES], ids=[r[0] for r in RULES]
)
def test_rules(options: dict[str, Any], said: str, answered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backends.need("botocore")
    with pytest.raises(InvalidRunConfigException) as refused:
        made(options)
    assert f" {said}" in refused.value.message
    if not answered:
        return
    monkeypatch.setattr(
        "shunter.schedulers.aws_sagemaker_scheduler.request.refuse_job", lambda app, problems: None
    )
    with pytest.raises(ApiError) as answer:
        request_validation.check_request(settle(made(options), {"<account>": "123456789012"}))
    assert answer.value.code == "ValidationException"
    assert answered in answer.value.message


ALLOWED: list[dict[str, Any]] = [
    {"channels": {"data": f"{LUSTRE}?mode=File"}, "input_mode": "Pipe", **VPC},
    {"channels": {"data": "s3://b/m?data_type=AugmentedManifestFile&attributes=a&mode=Pipe"}},
    {"channels": {"data": "s3://b/m?data_type=AugmentedManifestFile&attributes=a"}},
    {"channels": {"data": "s3://b/d?compression=Gzip&record_wrapper=RecordIO"}, "input_mode": "Pipe"},
    {"channels": {"data": "s3://b/d?record_wrapper=RecordIO"}, "input_mode": "FastFile"},
    {"model_uri": "s3://b/m.tar.gz", "input_mode": "FastFile"},
    {"checkpoint_s3_uri": "s3://b/c", "checkpoint_local_path": "/opt/ml/inputs"},
]


@pytest.mark.parametrize("options", ALLOWED, ids=lambda options: str(options)[:60])
def test_what_is_beside_a_rule_is_let_through(options: dict[str, Any]) -> None:
    backends.need("botocore")
    request = settle(made(options), {"<account>": "123456789012"})
    check_request(request)
    assert request_rules.problems_of(request) == []


def test_the_launchers_own_channels_go_to_all_groups_where_others_name_theirs() -> None:
    """The service refuses requests in which some channels have groups and others do not."""
    channels = {"left": "s3://b/l?groups=a", "all": "s3://b/x"}
    request = made({"instance_type": None, "instance_groups": GROUPS, "channels": channels})
    groups = {
        channel["ChannelName"]: channel["DataSource"]["S3DataSource"]["InstanceGroupNames"]
        for channel in request["InputDataConfig"]
    }
    assert groups == {"left": ["a"], "all": ["a", "b"], "shunter_code": ["a", "b"]}
    without = made({"instance_type": None, "instance_groups": GROUPS, "channels": {"all": "s3://b/x"}})
    assert "InstanceGroupNames" not in str(without)


def test_a_scripts_own_time_limit_counts_against_max_wait() -> None:
    app = AppDef("job", [Role("train", "image:1", entrypoint="python", args=["train.py"])])
    app.roles[0].metadata["train"] = {"program": "train.py", "timeout_seconds": 90_000}
    opts = AWSSageMakerOpts(
        role=ROLE, instance_type="ml.m5.large", use_spot_instances=True, max_wait=86_400, max_run=None
    )
    with pytest.raises(InvalidRunConfigException, match="max_wait is 86400, less than max_run, 90000"):
        make_job(app, opts, code=PlannedCode("k"))
