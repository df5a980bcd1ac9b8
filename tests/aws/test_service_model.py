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
