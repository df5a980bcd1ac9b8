"""What of the services an installed boto3 does not know yet, said before anything is uploaded."""

from __future__ import annotations

from typing import Any

from trainyard.schedulers.aws import service_model

_TRAINING = ("sagemaker", "CreateTrainingJob")
_QUEUE = ("batch", "SubmitServiceJob")
#: Members of requests that are newer than the oldest boto3 that is supported, the option that they come from,
#: and the first boto3 that has them.
MEMBERS: dict[tuple[str, str], list[tuple[tuple[str, ...], str, str]]] = {
    _TRAINING: [
        (("ResourceConfig", "InstancePreferences"), "instance_preferences", "1.43.90"),
        (("ResourceConfig", "InstancePlacementConfig"), "instance_placement_config", "1.40.6"),
        (("ResourceConfig", "TrainingPlanArn"), "training_plan", "1.35.75"),
        (("MlflowConfig",), "mlflow_config", "1.42.2"),
        (("ModelPackageConfig",), "model_package_config", "1.42.2"),
    ],
    _QUEUE: [
        (("quotaShareName",), "batch_quota_share", "1.42.72"),
        (("preemptionConfiguration",), "batch_preemption_retries", "1.42.72"),
    ],
}
#: The same of whole operations.
OPERATIONS: dict[tuple[str, str], tuple[str, str]] = {
    ("sagemaker", "ExtendTrainingPlan"): ("training_plan_extension", "1.42.66"),
    _QUEUE: ("batch_queue", "1.39.16"),
}


def too_new(service: str, operation: str, request: dict[str, Any]) -> list[str]:
    """Return what of a request the installed boto3 does not know, and take it out, so that the rest can be
    checked.

    Args:
        service: name of the service, such as ``sagemaker``.
        operation: name of the operation.
        request: the request; it is changed.
    """
    missing = operation_too_new(service, operation)
    if missing:
        return missing
    problems = []
    for path, option, version in MEMBERS.get((service, operation), []):
        place: Any = request
        for name in path[:-1]:
            place = place.get(name) or {}
        if path[-1] in place and not service_model.has_member(service, operation, path):
            del place[path[-1]]
            problems.append(_needs(option, version))
    return problems


def operation_too_new(service: str, operation: str) -> list[str]:
    """Return what is to be said if the installed boto3 does not know an operation."""
    known = OPERATIONS.get((service, operation))
    if known is None or service_model.has_operation(service, operation):
        return []
    return [_needs(*known)]


def _needs(option: str, version: str) -> str:
    from botocore import __version__

    return f"{option} needs boto3 {version} or newer, and {__version__} is installed: pip install -U boto3"
