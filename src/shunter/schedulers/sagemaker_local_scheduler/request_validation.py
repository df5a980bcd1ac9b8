"""Requests checked before anything starts: by the service's model, its rules, and what this machine can do.

A value of another type than the model's is a SerializationException, the first that is found. A value of the
right type that breaks a limit is a ValidationException, which names all of them in the service's words:
``1 validation error detected: Value 'a_b' at 'trainingJobName' failed to satisfy constraint: ...``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from shunter.schedulers.aws.service_model import input_of, matches
from shunter.schedulers.aws_sagemaker_scheduler import request_rules
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import count_of


class ApiError(Exception):
    """An answer that is an error.

    Args:
        code: such as ``ValidationException``.
        message: the service's words, where they are known.
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
        ApiError: SerializationException, a value is of another type; ValidationException, with all problems.
    """
    shape = input_of(service, operation)
    _check_types(params, shape)
    missing = [_broken(None, _member("", name), NOT_NULL) for name in also_required if name not in params]
    problems = [*missing, *_limits(params, shape, "")]
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


# ---- types and limits

NOT_NULL = "Member must not be null"
_NUMBERS = ("integer", "long", "float", "double")
#: How many bits the service's whole numbers have.
_BITS = {"integer": 32, "long": 64}
#: What the service calls a type, with its article.
_NAMES = {
    "string": "a String",
    "integer": "an Integer",
    "long": "a Long",
    "float": "a Float",
    "double": "a Double",
    "boolean": "a Boolean",
    "timestamp": "a Date",
    "blob": "a Blob",
}


def without_nulls(value: Any) -> Any:
    """Return parameters without members that are null: for the service they are absent."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _check_types(value: Any, shape: Any, path: str = "") -> None:
    """Refuse a value that is not of its shape's type.

    Raises:
        ApiError: SerializationException.
    """
    kind = shape.type_name
    if value is None:  # within a list; a limit says what is wrong with it
        return
    if kind == "structure":
        _expect(isinstance(value, dict), value, "structure", path)
        for name, item in value.items():
            if name in shape.members:
                _check_types(item, shape.members[name], _member(path, name))
    elif kind == "list":
        _expect(isinstance(value, (list, tuple)), value, "list", path)
        for number, item in enumerate(value, 1):
            _check_types(item, shape.member, f"{path}.{number}.member")
    elif kind == "map":
        _expect(isinstance(value, dict), value, "map", path)
        for key, item in value.items():
            _check_types(item, shape.value, f"{path}.{key}.member")
    elif not _is_of(value, kind):
        raise _unreadable(_mismatch(value, kind), path)


def _expect(is_right: bool, value: Any, kind: str, path: str) -> None:
    if is_right:
        return
    if isinstance(value, (dict, list)):
        raise _unreadable(_mismatch(value, kind), path)
    raise _unreadable(f"Expected {kind} or null", path)


def _is_of(value: Any, kind: str) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == "string":
        return isinstance(value, str)
    if kind in _BITS:
        most = 1 << (_BITS[kind] - 1)
        return isinstance(value, int) and -most <= value < most
    if kind in ("float", "double"):
        return isinstance(value, (int, float))
    if kind == "timestamp":
        return isinstance(value, (int, float)) or hasattr(value, "timestamp")
    return isinstance(value, (str, bytes))


def _mismatch(value: Any, kind: str) -> str:
    if isinstance(value, dict):
        return "Start of structure or map found where not expected."
    if isinstance(value, list):
        return "Start of list found where not expected"
    found = "NUMBER_VALUE"
    if isinstance(value, bool):
        found = f"{str(value).upper()}_VALUE"
    elif isinstance(value, float) and kind in _BITS:
        found = "DECIMAL_VALUE"
    elif isinstance(value, str):
        found = "STRING_VALUE"
    return f"{found} can not be converted to {_NAMES[kind]}"


def _unreadable(text: str, path: str) -> ApiError:
    return ApiError("SerializationException", f"{text} (at '{path}')" if path else text)


def _limits(value: Any, shape: Any, path: str) -> Iterator[str]:
    kind = shape.type_name
    if value is None:
        yield _broken(None, path, NOT_NULL)
    elif kind == "structure":
        for name in shape.required_members:
            if name not in value:
                yield _broken(None, _member(path, name), NOT_NULL)
        for name, item in value.items():
            if name in shape.members:
                yield from _limits(item, shape.members[name], _member(path, name))
            else:
                yield f"{_member(path, name)} is not among the members: {', '.join(shape.members)}"
    elif kind == "list":
        yield from (_broken(value, path, rule) for rule in _lengths(len(value), shape))
        for number, item in enumerate(value, 1):
            yield from _limits(item, shape.member, f"{path}.{number}.member")
    elif kind == "map":
        yield from (_broken(value, path, rule) for rule in _lengths(len(value), shape))
        for what, part, items in (("keys", shape.key, value.keys()), ("value", shape.value, value.values())):
            rules = _limits_of_entries(part)
            if any(item is None or list(_broken_by(item, part)) for item in items):
                yield _broken(value, path, f"Map {what} must satisfy constraint: [{', '.join(rules)}]")
    else:
        yield from (_broken(value, path, rule) for rule in _broken_by(value, shape))


def _broken(value: Any, path: str, rule: str) -> str:
    """Name the limit that a value breaks. Lists and objects are not shown: there may be secrets in them."""
    shown = "" if isinstance(value, (dict, list)) else " null" if value is None else f" '{value}'"
    return f"Value{shown} at '{path}' failed to satisfy constraint: {rule}"


def _broken_by(value: Any, shape: Any) -> Iterator[str]:
    """Yield the limits of a plain shape that a value breaks."""
    limits = shape.metadata
    if shape.type_name == "string":
        allowed = getattr(shape, "enum", None)
        if allowed and value not in allowed:
            yield f"Member must satisfy enum value set: [{', '.join(allowed)}]"
        yield from _lengths(len(value), shape)
        pattern = limits.get("pattern")
        # cut at its greatest length: some patterns take forever on long texts
        if pattern and not matches(pattern, value[: limits.get("max", len(value)) + 1]):
            yield f"Member must satisfy regular expression pattern: {pattern}"
    elif shape.type_name in _NUMBERS:
        if value < limits.get("min", value):
            yield f"Member must have value greater than or equal to {limits['min']}"
        if value > limits.get("max", value):
            yield f"Member must have value less than or equal to {limits['max']}"


def _lengths(length: int, shape: Any) -> Iterator[str]:
    limits = shape.metadata
    if length < limits.get("min", 0):
        yield f"Member must have length greater than or equal to {limits['min']}"
    if length > limits.get("max", length):
        yield f"Member must have length less than or equal to {limits['max']}"


def _limits_of_entries(shape: Any) -> list[str]:
    """Return all limits of the keys or values of a map, which the service names together."""
    limits = shape.metadata
    rules = []
    if "max" in limits:
        rules.append(f"Member must have length less than or equal to {limits['max']}")
    if "min" in limits:
        rules.append(f"Member must have length greater than or equal to {limits['min']}")
    if "pattern" in limits:
        rules.append(f"Member must satisfy regular expression pattern: {limits['pattern']}")
    return rules or [NOT_NULL]


def _member(path: str, name: str) -> str:
    own = name[:1].lower() + name[1:]
    return f"{path}.{own}" if path else own
