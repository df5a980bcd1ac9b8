"""What the service refuses and how it says so. No request, however wrong, is a fault of the endpoint."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import boto3
import botocore.exceptions
import pytest
from botocore import UNSIGNED
from botocore.config import Config

from shunter.schedulers.sagemaker_local_scheduler import request_validation
from shunter.schedulers.sagemaker_local_scheduler.request_validation import ApiError, without_nulls

from .conftest import GROUP, ROLE, file_channel

if TYPE_CHECKING:
    from .conftest import Jobs

WAITS = "print('up', flush=True); time.sleep(600)"
REQUEST: dict[str, Any] = {
    "TrainingJobName": "job",
    "RoleArn": ROLE,
    "HyperParameters": {"lr": "0.1"},
    "AlgorithmSpecification": {
        "TrainingImage": "image",
        "TrainingInputMode": "File",
        "ContainerEntrypoint": ["sh"],
        "ContainerArguments": ["-c", "true"],
        "MetricDefinitions": [{"Name": "loss", "Regex": "loss=(.*)"}],
        "EnableSageMakerMetricsTimeSeries": True,
        "TrainingImageConfig": {
            "TrainingRepositoryAccessMode": "Vpc",
            "TrainingRepositoryAuthConfig": {
                "TrainingRepositoryCredentialsProviderArn": "arn:aws:lambda:us-west-2:123456789012:function:f"
            },
        },
    },
    "InputDataConfig": [
        file_channel("a", "s3://b/c", InputMode="File", InstanceGroupNames=["g"], ContentType="text/csv"),
        file_channel("p", "s3://b/p", InputMode="Pipe", InstanceGroupNames=["g"], CompressionType="Gzip"),
    ],
    "OutputDataConfig": {"S3OutputPath": "s3://b/out", "KmsKeyId": "key"},
    "ResourceConfig": {
        "VolumeSizeInGB": 1,
        "InstanceGroups": [{"InstanceGroupName": "g", "InstanceType": "ml.m5.large", "InstanceCount": 2}],
    },
    "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 120},
    "VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]},
    "Tags": [{"Key": "k", "Value": "v"}],
    "EnableManagedSpotTraining": True,
    "EnableNetworkIsolation": False,
    "CheckpointConfig": {"S3Uri": "s3://b/check", "LocalPath": "/opt/ml/checkpoints"},
    "DebugHookConfig": {
        "S3OutputPath": "s3://b/debug",
        "CollectionConfigurations": [{"CollectionName": "c"}],
    },
    "TensorBoardOutputConfig": {"S3OutputPath": "s3://b/tb"},
    "ProfilerConfig": {"S3OutputPath": "s3://b/p", "ProfilingIntervalInMilliseconds": 500},
    "Environment": {"A": "b"},
    "RetryStrategy": {"MaximumRetryAttempts": 3},
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(path: tuple[Any, ...], change: Any) -> dict[str, Any]:
    request = copy.deepcopy(REQUEST)
    where: Any = request
    for part in path[:-1]:
        where = where[part]
    if change is ...:
        del where[path[-1]]
    else:
        where[path[-1]] = change
    return request


def code_of(request: dict[str, Any]) -> str:
    """The error's name; "" of a request that is taken. Any other exception is a fault."""
    try:
        request_validation.check_request(without_nulls(request))
    except ApiError as error:
        return error.code
    return ""


@pytest.mark.slow
def test_no_request_is_a_fault_of_the_endpoint() -> None:
    assert code_of(REQUEST) == ""
    for path in places(REQUEST):
        absent = code_of(changed(path, ...))
        assert absent in ("", "ValidationException"), path
        if isinstance(path[-1], str):
            assert code_of(changed(path, None)) == absent, f"null is absent: {path}"
        for wrong in ("", "x", 5, -1, 1.5, True, [], {}, [None], {"x": None}, [[]], "x" * 5000, 1 << 40):
            found = code_of(changed(path, wrong))
            assert found in ("", "ValidationException"), (path, wrong)
    for name in REQUEST:
        assert code_of({name: REQUEST[name]}) == "ValidationException"
    assert code_of({}) == "ValidationException"


def test_more_hosts_than_a_machine_has_are_refused_before_they_are_listed() -> None:
    groups = [
        {"InstanceGroupName": name, "InstanceType": "ml.m5.large", "InstanceCount": 501} for name in "ab"
    ]
    for resources in (
        {"InstanceType": "ml.m5.large", "InstanceCount": 2**31 - 1},
        {"InstanceGroups": groups},
    ):
        with pytest.raises(ApiError, match="this machine takes at most 1000"):
            request_validation.check_request(changed(("ResourceConfig",), {"VolumeSizeInGB": 1, **resources}))


@pytest.mark.parametrize("path", [("Environment",), ("AlgorithmSpecification", "ContainerArguments")])
def test_what_no_process_takes_is_refused_at_once(path: tuple[str, ...]) -> None:
    with pytest.raises(ApiError, match="NUL character"):
        request_validation.check_request(
            changed(path, {"A": "a\0b"} if path == ("Environment",) else ["a\0b"])
        )


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("AlgorithmSpecification",), ..., "Missing required parameter: AlgorithmSpecification"),
        (
            ("ResourceConfig", "VolumeSizeInGB"),
            "1",
            "parameter ResourceConfig.VolumeSizeInGB",
        ),
        (("TrainingJobName",), "_" * 64, "TrainingJobName: 64 characters, at most 63 are allowed"),
        (("InputDataConfig", 1, "CompressionType"), "gzip", "'gzip' must be one of None, Gzip"),
        (("Environment", "A"), "secret" * 100, "Environment.A: 600 characters, at most 512 are allowed"),
    ],
)
def test_limits_of_the_model_are_reported(path: tuple[Any, ...], value: Any, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        request_validation.check_request(changed(path, value))
    assert caught.value.code == "ValidationException"
    assert words in caught.value.message
    assert "secret" not in caught.value.message


def test_unsigned_requests_are_refused(jobs: Jobs) -> None:
    client = boto3.client("sagemaker", config=Config(signature_version=UNSIGNED))
    with pytest.raises(botocore.exceptions.ClientError, match="Missing Authentication Token") as caught:
        client.list_training_jobs()
    assert caught.value.response["Error"]["Code"] == "MissingAuthenticationTokenException"
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_jobs_are_known_in_their_own_region_alone(jobs: Jobs, processes: str) -> None:
    name = jobs.start("print('x')", RoleArn="arn:aws-cn:iam::210987654321:role/Training")
    described = jobs.end(name)
    arn = described["TrainingJobArn"]
    assert arn == f"arn:aws-cn:sagemaker:us-west-2:210987654321:training-job/{name}"
    sagemaker = boto3.client("sagemaker", region_name="eu-west-1")
    logs = boto3.client("logs", region_name="eu-west-1")
    assert sagemaker.list_training_jobs()["TrainingJobSummaries"] == []
    for call, arguments in (
        (sagemaker.describe_training_job, {"TrainingJobName": name}),
        (sagemaker.stop_training_job, {"TrainingJobName": name}),
        (sagemaker.delete_training_job, {"TrainingJobName": name}),
        (sagemaker.list_tags, {"ResourceArn": arn}),
    ):
        with pytest.raises(botocore.exceptions.ClientError, match="Requested resource not found"):
            call(**arguments)
    assert logs.describe_log_groups()["logGroups"] == []
    assert logs.describe_log_streams(logGroupName=GROUP)["logStreams"] == []
    assert logs.filter_log_events(logGroupName=GROUP)["events"] == []
    (group,) = jobs.logs.describe_log_groups(logGroupNamePrefix="/aws/sagemaker")["logGroups"]
    assert group["arn"] == f"arn:aws-cn:logs:us-west-2:210987654321:log-group:{GROUP}:*"
    assert (group["logGroupName"], group["storedBytes"]) == (GROUP, 2)
    assert jobs.logs.describe_log_groups(logGroupNamePrefix="/aws/batch")["logGroups"] == []
    with pytest.raises(sagemaker.exceptions.ResourceInUse, match="in another region"):
        sagemaker.create_training_job(**jobs.request("", name=name))


def test_a_job_is_updated(jobs: Jobs, processes: str) -> None:
    resources = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 5}
    warm = {**resources, "KeepAlivePeriodInSeconds": 600}
    name = jobs.start(WAITS, ResourceConfig=warm, ProfilerConfig={"S3OutputPath": "s3://b/p"})
    jobs.says(name, "up")
    answer = jobs.sagemaker.update_training_job(
        TrainingJobName=name,
        ResourceConfig={"KeepAlivePeriodInSeconds": 0},
        ProfilerConfig={"ProfilingIntervalInMilliseconds": 1000},
        ProfilerRuleConfigurations=[{"RuleConfigurationName": "r", "RuleEvaluatorImage": "i"}],
        RemoteDebugConfig={"EnableRemoteDebug": True},
    )
    found = jobs.describe(name)
    assert answer["TrainingJobArn"] == found["TrainingJobArn"]
    assert found["ResourceConfig"] == {**resources, "KeepAlivePeriodInSeconds": 0}
    assert found["ProfilerConfig"] == {"S3OutputPath": "s3://b/p", "ProfilingIntervalInMilliseconds": 1000}
    assert [rule["RuleConfigurationName"] for rule in found["ProfilerRuleConfigurations"]] == ["r"]
    assert found["RemoteDebugConfig"] == {"EnableRemoteDebug": True}

    def refusal(**change: Any) -> str:
        with pytest.raises(botocore.exceptions.ClientError) as caught:
            jobs.sagemaker.update_training_job(TrainingJobName=name, **change)
        assert caught.value.response["Error"]["Code"] == "ValidationException"
        return str(caught.value)

    assert "its status is none" in refusal(ResourceConfig={"KeepAlivePeriodInSeconds": 60})
    jobs.sagemaker.stop_training_job(TrainingJobName=name)
    jobs.end(name)
    assert "in status Stopped" in refusal(RemoteDebugConfig={"EnableRemoteDebug": False})
