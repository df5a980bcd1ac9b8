"""Requests are checked against all that the SDK's model of a service says."""

from __future__ import annotations

from typing import Any

import pytest

from shunter.schedulers.aws.service_model import problems_of

JOB: dict[str, Any] = {"jobName": "a", "jobQueue": "q", "jobDefinition": "d"}
TRAINING: dict[str, Any] = {
    "TrainingJobName": "job-1",
    "RoleArn": "arn:aws:iam::123456789012:role/R",
    "AlgorithmSpecification": {"TrainingImage": "i", "TrainingInputMode": "File"},
    "OutputDataConfig": {"S3OutputPath": "s3://b/p"},
    "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
}


def test_valid_requests() -> None:
    assert problems_of("batch", "SubmitJob", JOB) == []
    assert problems_of("sagemaker", "CreateTrainingJob", TRAINING) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"jobName": 1}, "jobName"),
        ({"jobNme": "x"}, "jobNme"),
        ({"arrayProperties": {"size": "3"}}, "arrayProperties.size"),
        (
            {"dependsOn": [{"jobId": "x", "type": "WHENEVER"}]},
            "dependsOn[0].type: 'WHENEVER' must be one of N_TO_N",
        ),
        ({"tags": {}}, "tags"),
        ({"tags": {str(i): "v" for i in range(51)}}, "tags: 51 entries, at most 50"),
        ({"tags": {"k" * 129: "v"}}, "129 characters, at most 128"),
        ({"tags": {"k": "v" * 257}}, "tags.k: 257 characters, at most 256"),
    ],
)
def test_wrong_requests_of_batch(changes: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in problems_of("batch", "SubmitJob", JOB | changes))


def test_what_is_missing() -> None:
    assert any("jobQueue" in problem for problem in problems_of("batch", "SubmitJob", {"jobName": "a"}))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["TrainingJobName"], "my_job", "does not match"),
        (["TrainingJobName"], "a" * 64, "64 characters, at most 63"),
        (["ResourceConfig", "InstanceType"], "ml.p4.24xlarge", "must be one of"),
        (["AlgorithmSpecification", "TrainingInputMode"], "file", "must be one of"),
        (["Environment"], {"A-B": "1"}, "does not match"),
        (["Environment"], {"A": "x" * 513}, "513 characters"),
        (["HyperParameters"], {str(i): "1" for i in range(101)}, "101 entries"),
        (["RetryStrategy"], {"MaximumRetryAttempts": 31}, "31 is more than 30"),
        (["OutputDataConfig", "S3OutputPath"], "/local/path", "does not match"),
        (["Tags"], [{"Key": "a;b", "Value": "v"}], "Tags[0].Key: 'a;b' does not match"),
        (["Tags"], [{"Key": str(i), "Value": "v"} for i in range(51)], "51 items"),
    ],
)
def test_wrong_requests_of_sagemaker(path: list[str], value: Any, words: str) -> None:
    import copy

    request = copy.deepcopy(TRAINING)
    target = request
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    found = problems_of("sagemaker", "CreateTrainingJob", request)
    assert len(found) == 1
    assert words in found[0]
    assert path[0] in found[0]


def test_patterns_of_letters_in_any_script() -> None:
    for key in ("Gruppe ä", "日本", "a_b.c:d/e=f+g-h@i"):
        assert (
            problems_of("sagemaker", "CreateTrainingJob", TRAINING | {"Tags": [{"Key": key, "Value": key}]})
            == []
        )
