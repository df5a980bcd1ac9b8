"""What is checked before a job is accepted: the service's own model and rules, and what is possible here."""

from __future__ import annotations

import copy
import re
from typing import Any

from trainyard.schedulers.aws.sagemaker import request_rules
from trainyard.schedulers.aws.sagemaker_local.endpoint import constraints
from trainyard.schedulers.aws.sagemaker_local.endpoint.errors import invalid
from trainyard.schedulers.aws.sagemaker_local.hosts.layout import count_of
from trainyard.schedulers.aws.service_model import input_of

#: What every job on instances needs: the model makes them optional for those without.
NEEDED = ("AlgorithmSpecification", "ResourceConfig", "StoppingCondition")
_COMMAND = ("ContainerEntrypoint", "ContainerArguments")
#: Local places where the service takes S3 alone. For the model they look like S3's.
_STAND_IN = "s3://this-machine/"
#: The most hosts of one job. Checked before a list of hosts is made.
_MOST_HOSTS = 1000


def check_request(request: dict[str, Any]) -> None:
    """Check a CreateTrainingJob request.

    Raises:
        ApiError: ValidationException, with all problems.
    """
    needed = () if request.get("ServerlessJobConfig") else NEEDED
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
        ApiError: SerializationException, a value is of another type; ValidationException, with all problems.
    """
    shape = input_of(service, operation)
    constraints.check_types(params, shape)
    constraints.check_limits(params, shape, also_required)


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
    has_preferences = "InstancePreferences" in resources  # with rules of their own, in request_rules
    if (
        not groups
        and not has_preferences
        and not (resources.get("InstanceType") and resources.get("InstanceCount"))
    ):
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
    names = [channel["ChannelName"] for channel in channels]
    problems = [
        f"the channel {name!r} is given twice" for name in sorted(set(names)) if names.count(name) > 1
    ]
    for channel in channels:
        sources = channel["DataSource"]
        if len(sources) != 1:
            problems.append(f"the channel {channel['ChannelName']!r} needs exactly one data source")
    return problems


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
