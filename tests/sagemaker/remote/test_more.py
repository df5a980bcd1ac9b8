"""Lists by tags, jobs that are repeated, and images with the workspace."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shunter.components.utils import sh
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import AWSSageMakerScheduler, create_scheduler
from shunter.specs.status import AppState
from tests import backends
from tests.sagemaker.remote.conftest import Cloud, wait_for
from tests.sagemaker.remote.test_cli import cfg, shunter
from tests.sagemaker.remote.test_jobs import options, submit

ARN = "arn:aws:sagemaker:us-east-1:123456789012:training-job/"
ROLE = "arn:aws:iam::123456789012:role/Training"


def found(name: str, status: str, **more: Any) -> dict[str, Any]:
    job = {
        "TrainingJobName": name,
        "TrainingJobArn": ARN + name,
        "TrainingJobStatus": status,
        "CreationTime": datetime(2026, 1, 1, tzinfo=UTC),
        "Tags": [{"Key": "shunter/version", "Value": "1"}, {"Key": "shunter/app-name", "Value": "mine"}],
        **more,
    }
    return {"TrainingJob": job}


def test_an_empty_page_is_not_the_last() -> None:
    """As the service may send it. The SDK's stub checks request and answer against the service's model."""
    backends.need("botocore")
    import botocore.session
    from botocore.stub import Stubber

    client = botocore.session.Session().create_client(
        "sagemaker", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
    )
    tags = [
        {"Name": "Tags.shunter/version", "Operator": "Exists"},
        {"Name": "Tags.torchx.pytorch.org/version", "Operator": "Exists"},
    ]
    request = {
        "Resource": "TrainingJob",
        "SearchExpression": {
            "SubExpressions": [{"Filters": tags, "Operator": "Or"}],
            "Operator": "And",
            "Filters": [
                {"Name": "CreationTime", "Operator": "GreaterThanOrEqualTo", "Value": "1970-01-01T00:00:10Z"},
                {"Name": "TrainingJobName", "Operator": "Contains", "Value": "b"},
            ],
        },
        "SortBy": "CreationTime",
        "SortOrder": "Ascending",
        "MaxResults": 100,
    }
    with Stubber(client) as stub:
        stub.add_response("search", {"Results": [found("b-1", "Completed")], "NextToken": "t"}, request)
        stub.add_response("search", {"Results": [], "NextToken": "u"}, {**request, "NextToken": "t"})
        stub.add_response(
            "search",
            {"Results": [found("b-2", "InProgress", SecondaryStatus="Training")]},
            {**request, "NextToken": "u"},
        )
        rows = create_scheduler("test", client).list({"since": 10.0, "name": "b"})
        stub.assert_no_pending_responses()
    assert [(row.app_id, row.state, row.name) for row in rows] == [
        ("b-1", AppState.SUCCEEDED, "mine"),
        ("b-2", AppState.RUNNING, "mine"),
    ]


@pytest.mark.slow
def test_a_list_where_search_is_not_to_be_had(cloud: Cloud, scheduler: AWSSageMakerScheduler) -> None:
    """The tags of each job are asked for: the endpoint has no Search, and elsewhere it may be forbidden."""
    names = ["first", "second", "other"]
    mine = [submit(scheduler, sh("true", image="i:1"), options(cloud, base_job_name=name)) for name in names]
    foreign = cloud.client("sagemaker").describe_training_job(TrainingJobName=mine[0])
    shown = ("AlgorithmSpecification", "ResourceConfig", "OutputDataConfig", "StoppingCondition", "RoleArn")
    cloud.client("sagemaker").create_training_job(
        TrainingJobName="foreign", **{key: foreign[key] for key in shown}
    )
    for app_id in mine:
        wait_for(scheduler, app_id)

    def listed(query: dict[str, Any]) -> tuple[set[str], list[str]]:
        cloud.calls.clear()
        return {row.app_id for row in scheduler.list(query)}, sorted(cloud.calls)

    search, listing, tags = (f"SageMaker.{name}" for name in ("Search", "ListTrainingJobs", "ListTags"))
    assert listed({}) == (set(mine), [tags] * 4 + [listing, search])
    assert listed({"name": "oth", "since": 10.0}) == ({mine[2]}, [tags, listing, search])
    assert listed({"since": datetime.now(UTC).timestamp() + 60}) == (set(), [listing, search])
    cloud.largest_page = 2
    assert listed({}) == (set(mine), [tags] * 4 + [listing] * 2 + [search])
    cloud.refused.add(search)
    assert listed({}) == (set(mine), [tags] * 4 + [listing] * 2 + [search])


@pytest.mark.slow
def test_a_job_is_repeated_with_the_code_that_it_had(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "train.py").write_text("print('as it was')\n")
    (project / "large.bin").write_bytes(os.urandom(400_000))  # too large to be kept here
    words = ["train.script", "--script", "train.py", "--image", "i:1"]
    first = shunter("run", "-s", "aws_sagemaker", "-cfg", cfg(cloud), "--wait", *words)
    handle = next(word for word in first.stdout.split() if word.startswith("aws_sagemaker://"))
    (project / "train.py").write_text("print('changed')\n")
    (project / "large.bin").unlink()
    again = shunter("rerun", "--wait", handle)
    other = next(
        word for word in again.stdout.split() if word.startswith("aws_sagemaker://") and word != handle
    )
    assert "as it was" in shunter("log", other).stdout
    for key in cloud.objects(prefix="shunter/code/"):
        cloud.client("s3").delete_object(Bucket=cloud.bucket, Key=key)
    lost = shunter("rerun", handle, code=3)
    assert "no longer in S3, nor on this machine" in lost.stderr


def test_the_workspace_goes_into_the_image_where_a_repository_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    cfg = {"role": ROLE, "instance_type": "ml.m5.large", "image_repo": "registry.example.com/team"}
    info = create_scheduler("test").submit_dryrun(sh("cat", "a.txt", image="base:1"), cfg, ".")
    image = info.request.job_def["AlgorithmSpecification"]["TrainingImage"]
    assert image.startswith("registry.example.com/team:")
    assert info.request.images_to_push == {image: tuple(image.rsplit(":", 1))}
    assert "InputDataConfig" not in info.request.job_def
    assert info.shipment is not None
    assert info.shipment.plan()["kind"] == "image"
