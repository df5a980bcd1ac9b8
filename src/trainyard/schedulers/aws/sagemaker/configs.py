"""Options that are an object of the request: written in the service's names, or in snake_case.

``{"S3OutputPath": "s3://b/tb"}`` and ``{"s3_output_path": "s3://b/tb"}`` are the same; so are the names that
the SageMaker SDK has for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.errors import InvalidRunConfigException, did_you_mean
from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts

_OUTPUT = ("S3OutputPath", "LocalPath")
_RULE = ("RuleConfigurationName", *_OUTPUT, "RuleEvaluatorImage", "InstanceType", "VolumeSizeInGB")
#: What the objects of each option may have.
MEMBERS: dict[str, tuple[str, ...]] = {
    "debugger_hook_config": (*_OUTPUT, "HookParameters", "CollectionConfigurations"),
    "debugger_rules": (*_RULE, "RuleParameters"),
    "profiler_config": (
        "S3OutputPath",
        "ProfilingIntervalInMilliseconds",
        "ProfilingParameters",
        "DisableProfiler",
    ),
    "profiler_rules": (*_RULE, "RuleParameters"),
    "tensorboard_output_config": _OUTPUT,
    "experiment_config": ("ExperimentName", "TrialName", "TrialComponentDisplayName", "RunName"),
    "instance_placement_config": ("EnableMultipleJobs", "PlacementSpecifications"),
    "instance_preferences": ("InstanceType", "InstanceCount", "TrainingPlanArns"),
    "mlflow_config": ("MlflowResourceArn", "MlflowExperimentName", "MlflowRunName"),
    "model_package_config": ("ModelPackageGroupArn", "SourceModelPackageArn"),
}
_ITEMS = {
    "CollectionConfigurations": ("CollectionName", "CollectionParameters"),
    "PlacementSpecifications": ("UltraServerId", "InstanceCount"),
}
#: Other names, of the SDK and short ones, by the option or list that they stand in.
_ALIASES: dict[str, dict[str, str]] = {
    "debugger_hook_config": {
        "container_local_output_path": "LocalPath",
        "collection_configs": "CollectionConfigurations",
    },
    "debugger_rules": {"name": "RuleConfigurationName", "image_uri": "RuleEvaluatorImage"},
    "profiler_config": {
        "system_monitor_interval_millis": "ProfilingIntervalInMilliseconds",
        "profiling_interval_in_millis": "ProfilingIntervalInMilliseconds",
    },
    "tensorboard_output_config": {"container_local_output_path": "LocalPath"},
    "instance_preferences": {"type": "InstanceType", "count": "InstanceCount"},
    "mlflow_config": {
        "resource_arn": "MlflowResourceArn",
        "experiment_name": "MlflowExperimentName",
        "run_name": "MlflowRunName",
    },
    "CollectionConfigurations": {"name": "CollectionName", "parameters": "CollectionParameters"},
}
_ALIASES["debugger_rules"]["container_local_output_path"] = "LocalPath"
_ALIASES["profiler_rules"] = _ALIASES["debugger_rules"]
#: Objects of texts: numbers and truth values are written as such.
_TEXTS = {"HookParameters", "CollectionParameters", "ProfilingParameters", "RuleParameters"}
#: What comes as text where an option is not written as JSON.
_INTEGERS = {"ProfilingIntervalInMilliseconds", "VolumeSizeInGB", "InstanceCount"}
_BOOLEANS = {"EnableMultipleJobs", "DisableProfiler"}
#: Accounts of the images with Debugger's own rules: developer guide, "Use Debugger Docker images for
#: built-in or custom rules".
_RULE_ACCOUNTS = {
    "af-south-1": "314341159256",
    "ap-east-1": "199566480951",
    "ap-northeast-1": "430734990657",
    "ap-northeast-2": "578805364391",
    "ap-northeast-3": "479947661362",
    "ap-south-1": "904829902805",
    "ap-southeast-1": "972752614525",
    "ap-southeast-2": "184798709955",
    "ca-central-1": "519511493484",
    "cn-north-1": "618459771430",
    "cn-northwest-1": "658757709296",
    "eu-central-1": "482524230118",
    "eu-north-1": "314864569078",
    "eu-south-1": "563282790590",
    "eu-west-1": "929884845733",
    "eu-west-2": "250201462417",
    "eu-west-3": "447278800020",
    "me-south-1": "986000313247",
    "sa-east-1": "818342061345",
    "us-east-1": "503895931360",
    "us-east-2": "915447279597",
    "us-gov-west-1": "515509971035",
    "us-west-1": "685455198987",
    "us-west-2": "895741380848",
}


def config_of(opts: AWSSageMakerOpts, option: str) -> dict[str, Any]:
    """Return an option as the request has it; empty if it is not given.

    Raises:
        InvalidRunConfigException: it has something that there is not.
    """
    given = getattr(opts, option)
    return _object(option, option, given) if isinstance(given, Mapping) else {}


def configs_of(opts: AWSSageMakerOpts, option: str) -> list[dict[str, Any]]:
    """Return an option that is a list of objects as the request has it; empty if it is not given.

    Raises:
        InvalidRunConfigException: an object has something that there is not.
    """
    return [_object(option, option, given) for given in getattr(opts, option) or []]


def rules_of(opts: AWSSageMakerOpts, option: str, region: str) -> list[dict[str, Any]]:
    """Return ``debugger_rules`` or ``profiler_rules``; those without an image run in that of the region.

    The name of a rule without an image is that of a built-in one, which ``rule_to_invoke`` says too.

    Raises:
        InvalidRunConfigException: a rule has something that there is not, or no image, in a region without.
    """
    rules = configs_of(opts, option)
    for rule in rules:
        if "RuleEvaluatorImage" in rule:
            continue
        account = _RULE_ACCOUNTS.get(region)
        if account is None:
            raise InvalidRunConfigException(
                f"{option}: a rule has no RuleEvaluatorImage, and no image of built-in rules is known "
                f"for {region}",
                option,
            )
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        image = f"{account}.dkr.ecr.{region}.{domain}/sagemaker-debugger-rules:latest"
        rule["RuleEvaluatorImage"] = image
        given = rule.get("RuleParameters", {})
        if isinstance(given, dict):
            rule["RuleParameters"] = {"rule_to_invoke": rule.get("RuleConfigurationName"), **given}
    return rules


def _object(option: str, place: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidRunConfigException(f"{option}: {given!r} is no object", option)
    known = MEMBERS.get(place) or _ITEMS[place]
    by_name = {_snake(member): member for member in known} | {member: member for member in known}
    by_name |= _ALIASES.get(place, {})
    result: dict[str, Any] = {}
    for key, value in given.items():
        member = by_name.get(key)
        if member is None:
            raise InvalidRunConfigException(
                f"{option} has no {key!r}", option, hint=did_you_mean(str(key), known)
            )
        if member in result:
            raise InvalidRunConfigException(f"{option} has {member} twice", option)
        result[member] = _value(option, member, value)
    return result


def _value(option: str, member: str, value: Any) -> Any:
    if member in _ITEMS:
        if not isinstance(value, list):
            raise InvalidRunConfigException(f"{option}: {member} is {value!r}, which is no list", option)
        return [_object(option, member, item) for item in value]
    if member in _TEXTS and isinstance(value, Mapping):
        return {str(key): _text(item) for key, item in value.items()}
    if member == "TrainingPlanArns" and isinstance(value, str):
        return [value]
    if member in _INTEGERS and isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value)
    if member in _BOOLEANS and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    return value


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


def _snake(member: str) -> str:
    """Return a member's name in snake_case: ``S3OutputPath`` is ``s3_output_path``."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", member)
    return spaced.lower()


# ---- what is wrong


def problems_of(opts: AWSSageMakerOpts, *, local: bool) -> Iterator[str]:
    """Find what is wrong between these options, beside what the service's model says of each."""
    if opts.debugger_rules and opts.debugger_hook_config is False:
        yield "debugger_rules are given, but debugger_hook_config=false saves nothing that they could look at"
    profiler = config_of(opts, "profiler_config")
    is_off = bool(opts.disable_profiler)
    if is_off and profiler and profiler.get("DisableProfiler") is not True:
        yield "profiler_config is given, but disable_profiler turns the profiler off"
    if opts.profiler_rules and (is_off or profiler.get("DisableProfiler")):
        yield "profiler_rules are given, but the profiler is turned off"
    for option in ("debugger_rules", "profiler_rules"):
        if any("RuleConfigurationName" not in rule for rule in configs_of(opts, option)):
            yield f"{option}: a rule has no name (RuleConfigurationName)"
    if opts.tensorboard_output_config is not None:
        target = config_of(opts, "tensorboard_output_config").get("S3OutputPath")
        if not target:
            yield "tensorboard_output_config has no S3OutputPath: where the files go"
    if not local:
        yield from _place_problems(opts)
    experiment = config_of(opts, "experiment_config")
    if opts.experiment_config is not None and not experiment:
        yield "experiment_config is empty: give ExperimentName, TrialName, RunName"
    if experiment.get("RunName") and not experiment.get("ExperimentName"):
        yield "experiment_config has a RunName and no ExperimentName, whose run it is"
    mlflow = opts.mlflow_config
    if mlflow is not None and not config_of(opts, "mlflow_config").get("MlflowResourceArn"):
        yield "mlflow_config has no MlflowResourceArn: the ARN of the tracking server or app"
    package = opts.model_package_config
    if package is not None and not config_of(opts, "model_package_config").get("ModelPackageGroupArn"):
        yield "model_package_config has no ModelPackageGroupArn: the group that the model is registered in"


def _place_problems(opts: AWSSageMakerOpts) -> Iterator[str]:
    for option in ("debugger_hook_config", "profiler_config", "tensorboard_output_config"):
        path = config_of(opts, option).get("S3OutputPath")
        if isinstance(path, str) and path and not path.startswith("s3://"):
            yield f"{option}: the S3OutputPath is {path!r}, but SageMaker writes to s3://bucket/prefix only"
