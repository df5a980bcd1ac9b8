"""Search, by boto3: jobs by any of their properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import botocore.exceptions
import pytest

from .conftest import file_channel

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Jobs


@pytest.fixture
def three(jobs: Jobs, processes: str, tmp_path: Path) -> Jobs:
    """Three jobs: one that tells its accuracy, one that fails, one with channels."""
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data").touch()
    places = [file_channel("train", f"{tmp_path}/a"), file_channel("test", f"{tmp_path}/b")]
    accuracy = {"MetricDefinitions": [{"Name": "acc", "Regex": "acc=([0-9.]+)"}]}
    tag = {"Key": "team/name.x", "Value": "red"}
    jobs.run(
        "print('acc=0.5')",
        name="one",
        AlgorithmSpecification=accuracy,
        HyperParameters={"lr": "0.5", "opt": "sgd"},
    )
    jobs.run("sys.exit(3)", name="two", HyperParameters={"lr": "1.5"}, Tags=[tag], Environment={"A_B": "x"})
    jobs.run("print()", name="three", channels=places, hosts=2, Tags=[{**tag, "Value": "blue"}])
    return jobs


def found(jobs: Jobs, *filters: Any, join: str = "And", **more: Any) -> list[str]:
    """Names of the jobs that satisfy filters, the first one first."""
    expression: dict[str, Any] = {"Operator": join, **more.pop("expression", {})}
    if filters:
        expression["Filters"] = [
            dict(zip(("Name", "Operator", "Value"), each, strict=False)) for each in filters
        ]
    order = {"SortBy": "CreationTime", "SortOrder": "Ascending", **more}
    answer = jobs.sagemaker.search(Resource="TrainingJob", SearchExpression=expression, **order)
    return [result["TrainingJob"]["TrainingJobName"] for result in answer["Results"]]


FILTERS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "name": (("TrainingJobName", "Equals", "two"), ["two"]),
    "other names": (("TrainingJobName", "NotEquals", "two"), ["one", "three"]),
    "part of a name": (("TrainingJobName", "Contains", "o"), ["one", "two"]),
    "one of several": (("TrainingJobStatus", "In", "Failed,Stopped"), ["two"]),
    "status": (("TrainingJobStatus", "Equals", "Completed"), ["one", "three"]),
    "has failed": (("FailureReason", "Exists"), ["two"]),
    "has not failed": (("FailureReason", "NotExists"), ["one", "three"]),
    "number": (("ResourceConfig.InstanceCount", "GreaterThan", "1"), ["three"]),
    "least number": (("ResourceConfig.InstanceCount", "GreaterThanOrEqualTo", "1"), ["one", "two", "three"]),
    "less": (("ResourceConfig.InstanceCount", "LessThan", "2.5"), ["one", "two", "three"]),
    "exact number": (("ResourceConfig.InstanceCount", "Equals", "2"), ["three"]),
    "flag": (("EnableManagedSpotTraining", "Equals", "false"), ["one", "two", "three"]),
    "tag": (("Tags.team/name.x", "Equals", "red"), ["two"]),
    "tag is there": (("Tags.team/name.x", "Exists"), ["two", "three"]),
    "tag is not there": (("Tags.team/name.x", "NotExists"), ["one"]),
    "tag differs": (("Tags.team/name.x", "NotEquals", "red"), ["one", "three"]),
    "decimal": (("HyperParameters.lr", "LessThan", "0.9"), ["one"]),
    "decimal as a whole number": (("HyperParameters.lr", "LessThanOrEqualTo", "1"), ["one", "two"]),
    "text": (("HyperParameters.opt", "Contains", "g"), ["one"]),
    "metric": (("Metrics.acc", "GreaterThanOrEqualTo", "0.5"), ["one"]),
    "no such metric": (("Metrics.acc", "GreaterThan", "0.5"), []),
    "variable": (("Environment.A_B", "Equals", "x"), ["two"]),
    "in a list": (("InputDataConfig.ChannelName", "Equals", "test"), ["three"]),
    "structure is there": (("CheckpointConfig", "Exists"), []),
    "no time": (("CreationTime", "LessThan", "2020-01-01T00:00:00"), []),
    "time": (("TrainingEndTime", "GreaterThan", "2020-01-01T00:00:00Z"), ["one", "two", "three"]),
}


@pytest.mark.slow
def test_every_operator_and_every_kind(three: Jobs) -> None:
    for what, (condition, names) in FILTERS.items():
        assert found(three, condition) == names, what
    only_value = {"Filters": [{"Name": "TrainingJobName", "Value": "one"}]}
    assert found(three, expression=only_value) == ["one"]


def test_expressions(three: Jobs) -> None:
    one, two = ("TrainingJobName", "Equals", "one"), ("TrainingJobName", "Equals", "two")
    assert found(three, one, two) == []
    assert found(three, one, two, join="Or") == ["one", "two"]
    either = {"Filters": [dict(zip(("Name", "Operator", "Value"), x, strict=True)) for x in (one, two)]}
    inner = {"SubExpressions": [{**either, "Operator": "Or"}]}
    assert found(three, ("TrainingJobStatus", "Equals", "Failed"), expression=inner) == ["two"]
    deeper = {"SubExpressions": [{"SubExpressions": inner["SubExpressions"]}]}
    assert found(three, expression=deeper) == ["one", "two"]


@pytest.mark.slow
def test_one_object_of_a_list_has_to_satisfy_a_nested_filter(three: Jobs) -> None:
    def channels(name: str, part: str) -> list[str]:
        filters = [
            {"Name": "InputDataConfig.ChannelName", "Operator": "Equals", "Value": name},
            {"Name": "InputDataConfig.DataSource.S3DataSource.S3Uri", "Operator": "Contains", "Value": part},
        ]
        nested = [{"NestedPropertyName": "InputDataConfig", "Filters": filters}]
        return found(three, expression={"NestedFilters": nested})

    assert channels("train", "/a") == ["three"]
    assert channels("test", "/a") == []  # it is another channel's
    tags = [{"Name": "Tags.Key", "Value": "team/name.x"}, {"Name": "Tags.Value", "Value": "blue"}]
    nested = [{"NestedPropertyName": "Tags", "Filters": tags}]
    assert found(three, expression={"NestedFilters": nested}) == ["three"]


@pytest.mark.slow
def test_order_and_pages(three: Jobs) -> None:
    search = three.sagemaker.search
    assert found(three, ("TrainingJobName", "Exists"), SortOrder="Descending") == ["three", "two", "one"]
    assert found(three, ("TrainingJobName", "Exists"), SortBy="TrainingJobName") == ["one", "three", "two"]
    by_rate = found(three, ("TrainingJobName", "Exists"), SortBy="HyperParameters.lr", SortOrder="Descending")
    assert by_rate == ["two", "one", "three"]
    answer = search(Resource="TrainingJob")
    names = [each["TrainingJob"]["TrainingJobName"] for each in answer["Results"]]
    assert names == ["three", "two", "one"]  # by the time of the last change
    assert answer["TotalHits"] == {"Value": 3, "Relation": "EqualTo"}
    pages = three.sagemaker.get_paginator("search").paginate(
        Resource="TrainingJob", PaginationConfig={"PageSize": 2}
    )
    assert [len(page["Results"]) for page in pages] == [2, 1]
    visible = [{"Key": "a", "Value": "b"}]
    assert len(search(Resource="TrainingJob", VisibilityConditions=visible)["Results"]) == 3
    assert search(Resource="TrainingJob", CrossAccountFilterOption="CrossAccount")["Results"] == []


@pytest.mark.slow
def test_pages_hold_every_job_once_while_others_are_created(three: Jobs) -> None:
    for operation, items in (("list_training_jobs", "TrainingJobSummaries"), ("search", "Results")):
        call = getattr(three.sagemaker, operation)
        arguments = {"Resource": "TrainingJob", "SortBy": "CreationTime"} if operation == "search" else {}
        first = call(MaxResults=1, **arguments)
        later = f"later-{operation.replace('_', '-')}"
        three.end(three.start("print()", name=later))
        rest = call(MaxResults=10, NextToken=first["NextToken"], **arguments)
        rows = [row.get("TrainingJob", row)["TrainingJobName"] for row in first[items] + rest[items]]
        assert len(set(rows)) == len(rows)
        assert later not in rows
        assert {"one", "two", "three"} <= set(rows)


@pytest.mark.slow
def test_what_search_shows_of_a_job(three: Jobs) -> None:
    """All that DescribeTrainingJob shows and Search has a place for, and the tags."""
    expression = {"Filters": [{"Name": "TrainingJobName", "Value": "two"}]}
    [result] = three.sagemaker.search(Resource="TrainingJob", SearchExpression=expression)["Results"]
    job, described = result["TrainingJob"], three.describe("two")
    assert job.pop("Tags") == [{"Key": "team/name.x", "Value": "red"}]
    model = three.sagemaker.meta.service_model.shape_for("TrainingJob").members
    assert job == {key: value for key, value in described.items() if key in model}


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"Filters": [{"Name": "TrainingJob", "Value": "x"}]}, "no property TrainingJob"),
    "below text": ({"Filters": [{"Name": "RoleArn.x", "Value": "x"}]}, "no property RoleArn.x"),
    "text in order": (
        {"Filters": [{"Name": "TrainingJobName", "Operator": "LessThan", "Value": "x"}]},
        "LessThan is not for",
    ),
    "part of a number": (
        {"Filters": [{"Name": "TrainingTimeInSeconds", "Operator": "Contains", "Value": "1"}]},
        "only for text",
    ),
    "no number": (
        {"Filters": [{"Name": "Metrics.acc", "Operator": "LessThan", "Value": "inf"}]},
        "compared with a number",
    ),
    "no time": ({"Filters": [{"Name": "CreationTime", "Value": "today"}]}, "is a time like"),
    "no flag": ({"Filters": [{"Name": "EnableNetworkIsolation", "Value": "1"}]}, "true or false"),
    "structure": ({"Filters": [{"Name": "ResourceConfig", "Value": "1"}]}, "holds other properties"),
    "no value": ({"Filters": [{"Name": "RoleArn", "Operator": "Equals"}]}, "has no Value"),
    "nothing": ({"Filters": [{"Name": "RoleArn"}]}, "neither Operator nor Value"),
    "empty": ({"Operator": "And"}, "at least one of"),
    "operator": ({"Filters": [{"Name": "RoleArn", "Operator": "Like", "Value": "x"}]}, "Like"),
    "contains twice": (
        {"Filters": [{"Name": "RoleArn", "Operator": "Contains", "Value": x} for x in "ab"]},
        "usage limit of 1 exceeded",
    ),
    "no list": (
        {"NestedFilters": [{"NestedPropertyName": "RoleArn", "Filters": [{"Name": "RoleArn.x"}]}]},
        "not a list of objects",
    ),
    "other list": (
        {"NestedFilters": [{"NestedPropertyName": "InputDataConfig", "Filters": [{"Name": "Tags.Key"}]}]},
        "not a property of InputDataConfig",
    ),
    "too much": (
        {"SubExpressions": [{"Filters": [{"Name": "RoleArn", "Value": "x"}] * 20}] * 3},
        "at most 50",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_search_refuses(jobs: Jobs, mistake: str) -> None:
    expression, words = MISTAKES[mistake]
    with pytest.raises(botocore.exceptions.ClientError, match=words) as error:
        jobs.sagemaker.search(Resource="TrainingJob", SearchExpression=expression)
    assert error.value.response["Error"]["Code"] == "ValidationException"


def test_other_resources_are_not_here(jobs: Jobs) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match="not Model"):
        jobs.sagemaker.search(Resource="Model")
    for token in ("x", "1", "-1@2", "1@", "\u0661@1"):
        with pytest.raises(botocore.exceptions.ClientError, match="NextToken is invalid"):
            jobs.sagemaker.search(Resource="TrainingJob", NextToken=token)
    for order, words in (("Nothing", "no property Nothing"), ("ResourceConfig", "no values to sort by")):
        with pytest.raises(botocore.exceptions.ClientError, match=words):
            jobs.sagemaker.search(Resource="TrainingJob", SortBy=order)
