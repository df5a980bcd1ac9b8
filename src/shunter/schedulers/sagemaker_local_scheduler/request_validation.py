"""Requests checked before anything starts: by the service's model, its rules, and what this machine can do.

The errors have the service's names, and our words.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from shunter.schedulers.aws.service_model import problems_of
from shunter.schedulers.aws_sagemaker_scheduler import request_rules
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import count_of


class ApiError(Exception):
    """An answer that is an error.

    Args:
        code: such as ``ValidationException``.
        message: what is wrong.
        status: of HTTP.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


def invalid(message: str) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError("ValidationException", message)


# ---- rules

#: What every job on instances needs: the model makes them optional for those without.
NEEDED = ("AlgorithmSpecification", "ResourceConfig", "StoppingCondition")
_COMMAND = ("ContainerEntrypoint", "ContainerArguments")
#: Replaces local paths in places where the service accepts only S3, so that they satisfy the model.
_STAND_IN = "s3://this-machine/"
#: The most hosts of one job. Checked before a list of hosts is made.
_MOST_HOSTS = 1000


def check_request(request: dict[str, Any], *, by_model: bool = True) -> None:
    """Check a CreateTrainingJob request; ``by_model`` tells whether also by the service's model, of the SDK.

    Raises:
        ApiError: ValidationException, with all problems.
    """
    needed = () if request.get("ServerlessJobConfig") else NEEDED
    if by_model:
        check("CreateTrainingJob", _with_stand_ins(request), also_required=needed)
    problems = _not_here(request) or _rules(request)
    if problems:
        raise invalid("; ".join(problems))


def check(
    operation: str,
    params: dict[str, Any],
    service: str = "sagemaker",
    also_required: tuple[str, ...] = (),
) -> None:
    """Check the parameters of an operation against the service's model.

    Args:
        operation: the operation's name.
        params: its parameters.
        service: what the SDK calls the service.
        also_required: members that have to be there, although the model does not say so.

    Raises:
        ApiError: ValidationException, with all problems.
    """
    missing = [f"Missing required parameter: {name}" for name in also_required if name not in params]
    problems = [*missing, *problems_of(service, operation, params)]
    if problems:
        count = len(problems)
        raise invalid(f"{count} validation error{'s' if count > 1 else ''} detected: {'; '.join(problems)}")


def _with_stand_ins(request: dict[str, Any]) -> dict[str, Any]:
    copied = copy.deepcopy(request)
    for where, key in _places(copied):
        uri = where[key]
        if isinstance(uri, str) and uri.startswith(("file://", "/")):
            where[key] = _STAND_IN + uri.removeprefix("file://").lstrip("/")
    return copied


def _places(request: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Return where a request may name a local place."""
    found = [
        (request.get("OutputDataConfig"), "S3OutputPath"),
        (request.get("CheckpointConfig"), "S3Uri"),
        (request.get("DebugHookConfig"), "S3OutputPath"),
        (request.get("ProfilerConfig"), "S3OutputPath"),
        (request.get("TensorBoardOutputConfig"), "S3OutputPath"),
    ]
    channels = request.get("InputDataConfig")
    for channel in channels if isinstance(channels, list) else ():
        source = channel.get("DataSource") if isinstance(channel, dict) else None
        found.append((source.get("S3DataSource") if isinstance(source, dict) else None, "S3Uri"))
    return [(where, key) for where, key in found if isinstance(where, dict) and key in where]


def _rules(request: dict[str, Any]) -> list[str]:
    """Return which rules between members are broken."""
    problems = []
    resources, condition = request.get("ResourceConfig") or {}, request.get("StoppingCondition") or {}
    groups = resources.get("InstanceGroups")
    if groups and ("InstanceType" in resources or "InstanceCount" in resources):
        problems.append("ResourceConfig has InstanceGroups, so it cannot have InstanceType or InstanceCount")
    has_preferences = "InstancePreferences" in resources  # with separate rules, in request_rules
    is_plain = resources.get("InstanceType") and resources.get("InstanceCount")
    if not (groups or has_preferences or is_plain):
        problems.append("ResourceConfig needs InstanceType and InstanceCount, or InstanceGroups")
    names = [group["InstanceGroupName"] for group in groups or ()]
    if len(set(names)) < len(names):
        problems.append("the names of the instance groups are not unique")
    if any(group["InstanceCount"] < 1 for group in groups or ()):
        problems.append("an instance group has no instance")
    is_spot = bool(request.get("EnableManagedSpotTraining"))
    longest = condition.get("MaxWaitTimeInSeconds")
    if is_spot and longest is None:
        problems.append("MaxWaitTimeInSeconds is required with EnableManagedSpotTraining")
    if not is_spot and longest is not None:
        problems.append("MaxWaitTimeInSeconds is set, but EnableManagedSpotTraining is not")
    algorithm = request["AlgorithmSpecification"]
    if bool(algorithm.get("TrainingImage")) == bool(algorithm.get("AlgorithmName")):
        problems.append("AlgorithmSpecification needs TrainingImage or AlgorithmName, one of them")
    for definition in algorithm.get("MetricDefinitions") or ():
        try:
            re.compile(definition["Regex"])
        except re.error as error:
            problems.append(f"the regular expression of metric {definition['Name']!r} is wrong: {error}")
    return [*problems, *_channel_rules(request), *request_rules.problems_of(request, is_local=True)]


def _channel_rules(request: dict[str, Any]) -> list[str]:
    channels = request.get("InputDataConfig") or []
    twice = request_rules.twice(channel["ChannelName"] for channel in channels)
    return [
        *(f"the channel {name!r} is given twice" for name in twice),
        *(
            f"the channel {channel['ChannelName']!r} needs exactly one data source"
            for channel in channels
            if len(channel["DataSource"]) != 1
        ),
    ]


def _not_here(request: dict[str, Any]) -> list[str]:
    """Return what the service could do and this machine cannot."""
    problems = []
    if request.get("AlgorithmSpecification", {}).get("AlgorithmName"):
        problems.append("AlgorithmName names an algorithm of the marketplace, which is not on this machine")
    if request.get("ServerlessJobConfig"):
        problems.append("ServerlessJobConfig cannot be carried out on this machine")
    elif (count := count_of(request)) > _MOST_HOSTS:
        problems.append(f"the job asks for {count} hosts; this machine takes at most {_MOST_HOSTS} for a job")
    algorithm = request.get("AlgorithmSpecification", {})
    words = [word for part in _COMMAND for word in algorithm.get(part) or ()]
    variables = request.get("Environment") or {}
    if any("\0" in text for text in [*words, *variables, *variables.values()]):
        problems.append("a word of the command or of Environment has a NUL character, which no process takes")
    for channel in request.get("InputDataConfig") or ():
        name, sources = channel["ChannelName"], channel["DataSource"]
        kind = sources.get("S3DataSource", {}).get("S3DataType")
        if "DatasetSource" in sources:
            problems.append(f"the channel {name!r} is a data set of the service's own hub")
        elif kind == "Converse":
            problems.append(f"the channel {name!r} is of type {kind}, which is not done here")
    return problems


def without_nulls(value: Any) -> Any:
    """Return parameters without members that are null: for the service they are absent."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
