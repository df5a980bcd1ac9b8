"""Documented rules between members of a request: in the options' words, and by the endpoint in its own."""

from __future__ import annotations

import copy
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

PLAN = f"arn:aws:sagemaker:us-east-1:123456789012:training-plan/{'p' * 20}"
PREFERENCES = {"instance_type": None, "instance_preferences": ["ml.m5.large"]}
PLACED = {"enable_multiple_jobs": True}

#: Options, what is said of them, and what the endpoint says of the request.
RULES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "28 days",
        {"max_run": 2419201},
        "max_run is 2419201, more than 28 days (2419200)",
        "MaxRuntimeInSeconds is 2419201, more than 28 days (2419200)",
    ),
    (
        "no volume, no key",
        {"instance_type": "ml.g5.xlarge", "volume_kms_key": "k"},
        "volume_kms_key is given, but ml.g5.xlarge has its own disks",
        "VolumeKmsKeyId is given, but ml.g5.xlarge has its own disks",
    ),
    (
        "no volume in any group",
        {
            "instance_type": None,
            "volume_kms_key": "k",
            "instance_groups": [{**GROUPS[0], "type": "ml.g4dn.xlarge"}, GROUPS[1]],
        },
        "volume_kms_key is given, but ml.g4dn.xlarge, ml.g5.xlarge has its own disks",
        "VolumeKmsKeyId is given, but ml.g4dn.xlarge, ml.g5.xlarge has its own disks",
    ),
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
        "file systems are in a VPC",
        {"channels": {"data": LUSTRE}},
        "the channel 'data' is a file system, which needs subnets and security_group_ids",
        "",  # the endpoint has directories of this machine for file systems
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
    (
        "unknown groups",
        {"instance_type": None, "instance_groups": GROUPS, "channels": {"data": "s3://b/d?groups=c"}},
        "the channel 'data' has groups 'c', which is not a group; known: a, b",
        "the channel 'data' has InstanceGroupNames 'c', which is not a group; known: a, b",
    ),
    (
        "groups without groups",
        {"channels": {"data": "s3://b/d?groups=a"}},
        "the channel 'data' has groups 'a', which is not a group; the job has no instance groups",
        "the channel 'data' has InstanceGroupNames 'a', which is not a group; the job has no instance groups",
    ),
    (
        "Express One Zone has no keys",
        {"output_path": "s3://results--use1-az4--x-s3/x", "output_kms_key": "k"},
        "output_kms_key is given, but output_path s3://results--use1-az4--x-s3/x is in a directory bucket",
        "KmsKeyId is given, but S3OutputPath s3://results--use1-az4--x-s3/x is in a directory bucket",
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
    (
        "AWS's own tags",
        {"tags": [{"Key": "aws:team", "Value": "x"}]},
        "the tag 'aws:team' begins with aws:, which is reserved for AWS",
        "the tag 'aws:team' begins with aws:, which is reserved for AWS",
    ),
    *(
        (
            f"preferences and {member}",
            {**PREFERENCES, **more},
            f"instance_preferences and {option} are mutually exclusive",
            f"InstancePreferences and {member} are mutually exclusive",
        )
        for member, option, more in (
            (
                "EnableManagedSpotTraining",
                "use_spot_instances",
                {"use_spot_instances": True, "max_wait": 90000},
            ),
            ("InstancePlacementConfig", "instance_placement_config", {"instance_placement_config": PLACED}),
        )
    ),
    (
        "a type twice",
        {"instance_type": None, "instance_preferences": ["ml.m5.large", "ml.m5.large"]},
        "instance_preferences has ml.m5.large twice",
        "InstancePreferences has ml.m5.large twice",
    ),
    (
        "some counts",
        {
            "instance_type": None,
            "instance_preferences": [{"type": "ml.m5.large", "count": 1}, "ml.c5.xlarge"],
        },
        "instance_preferences: some have an InstanceCount and some do not",
        "InstancePreferences: some have an InstanceCount and some do not",
    ),
    (
        "a count of none",
        {"instance_type": None, "instance_preferences": [{"type": "ml.m5.large", "count": 0}]},
        "instance_preferences: an InstanceCount is less than 1",
        "InstancePreferences: an InstanceCount is less than 1",
    ),
    (
        "two kinds of plans",
        {
            "instance_type": None,
            "instance_preferences": [{"type": "ml.m5.large", "training_plan_arns": PLAN}],
            "training_plan": PLAN,
        },
        "instance_preferences have TrainingPlanArns, so training_plan cannot be given too",
        "InstancePreferences have TrainingPlanArns, so TrainingPlanArn cannot be given too",
    ),
    (
        "more places than instances",
        {"instance_placement_config": {"placement_specifications": [{"instance_count": 2}]}},
        "instance_placement_config places 2 instances, and the job has 1",
        "InstancePlacementConfig places 2 instances, and the job has 1",
    ),
    (
        "intervals of the profiler",
        {"profiler_config": {"profiling_interval_in_milliseconds": 300}},
        "profiler_config: the interval must be one of 100, 200, 500, 1000, 5000, 60000 ms, not 300",
        "ProfilerConfig: the interval must be one of 100, 200, 500, 1000, 5000, 60000 ms, not 300",
    ),
    (
        "rules of one name",
        {"debugger_rules": [{"name": "a"}], "profiler_rules": [{"name": "a"}]},
        "debugger_rules and profiler_rules: two rules are named 'a'",
        "DebugRuleConfigurations and ProfilerRuleConfigurations: two rules are named 'a'",
    ),
    (
        "collections of one name",
        {"debugger_hook_config": {"collection_configs": [{"name": "a"}, {"name": "a"}]}},
        "debugger_hook_config: two collections are named 'a'",
        "DebugHookConfig: two collections are named 'a'",
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
    {"max_run": 2419200},
    {"instance_type": "ml.c5.xlarge", "volume_kms_key": "k"},
    {"instance_type": None, "instance_groups": GROUPS, "volume_kms_key": "k"},
    {"channels": {"data": f"{LUSTRE}?mode=File"}, "input_mode": "Pipe", **VPC},
    {"channels": {"data": "s3://b/m?data_type=AugmentedManifestFile&attributes=a&mode=Pipe"}},
    {"channels": {"data": "s3://b/m?data_type=AugmentedManifestFile&attributes=a"}},
    {"channels": {"data": "s3://b/d?compression=Gzip&record_wrapper=RecordIO"}, "input_mode": "Pipe"},
    {"channels": {"data": "s3://b/d?record_wrapper=RecordIO"}, "input_mode": "FastFile"},
    {"model_uri": "s3://b/m.tar.gz", "input_mode": "FastFile"},
    {"output_path": "s3://results--use1-az4--x-s3/x"},
    {"output_path": "s3://results--x-s3-not/x", "output_kms_key": "k"},
    {"checkpoint_s3_uri": "s3://b/c", "checkpoint_local_path": "/opt/ml/inputs"},
    {
        "instance_type": None,
        "instance_preferences": [
            {"type": "ml.m5.large", "count": 1, "training_plan_arns": PLAN},
            {"type": "ml.c5.xlarge", "count": 2},
        ],
    },
    {"profiler_config": {"profiling_interval_in_milliseconds": 60000}},
    {"debugger_rules": [{"name": "a"}], "profiler_rules": [{"name": "b"}]},
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
    mixed = copy.deepcopy(request)
    del mixed["InputDataConfig"][1]["DataSource"]["S3DataSource"]["InstanceGroupNames"]
    with pytest.raises(ApiError, match=r"some channels have InstanceGroupNames \(left, shunter_code\)"):
        request_validation.check_request(mixed)


def test_a_scripts_own_time_limit_counts_against_max_wait() -> None:
    app = AppDef("job", [Role("train", "image:1", entrypoint="python", args=["train.py"])])
    app.roles[0].metadata["train"] = {"program": "train.py", "timeout_seconds": 90_000}
    opts = AWSSageMakerOpts(
        role=ROLE, instance_type="ml.m5.large", use_spot_instances=True, max_wait=86_400, max_run=None
    )
    with pytest.raises(InvalidRunConfigException, match="max_wait is 86400, less than max_run, 90000"):
        make_job(app, opts, code=PlannedCode("k"))
