"""Search, by boto3: jobs by any of their properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


@pytest.mark.slow
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
def test_what_search_shows_of_a_job(three: Jobs) -> None:
    """All that DescribeTrainingJob shows and Search has a place for, and the tags."""
    expression = {"Filters": [{"Name": "TrainingJobName", "Value": "two"}]}
    [result] = three.sagemaker.search(Resource="TrainingJob", SearchExpression=expression)["Results"]
    job, described = result["TrainingJob"], three.describe("two")
    assert job.pop("Tags") == [{"Key": "team/name.x", "Value": "red"}]
    model = three.sagemaker.meta.service_model.shape_for("TrainingJob").members
    assert job == {key: value for key, value in described.items() if key in model}
