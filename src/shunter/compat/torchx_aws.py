"""TorchX's names for AWS Batch and SageMaker (``torchx.schedulers.aws_batch_scheduler``, ...)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, TypeVar

from shunter.compat.torchx_settings import ENV_TORCHX_IMAGE as ENV_TORCHX_IMAGE
from shunter.compat.torchx_settings import ENV_TORCHX_ROLE_IDX as ENV_TORCHX_ROLE_IDX
from shunter.compat.torchx_settings import ENV_TORCHX_ROLE_NAME as ENV_TORCHX_ROLE_NAME
from shunter.schedulers.aws_batch_scheduler.request import requirements
from shunter.specs.resources import Resource
from shunter.specs.status import AppState

T = TypeVar("T")
DEFAULT_ROLE_NAME = "node"
TAG_TORCHX_VER = "torchx.pytorch.org/version"
TAG_TORCHX_APPNAME = "torchx.pytorch.org/app-name"
TAG_TORCHX_USER = "torchx.pytorch.org/user"
#: States of AWS Batch. A job that was cancelled is FAILED there; our scheduler reports it as CANCELLED.
JOB_STATE: dict[str, AppState] = {
    "SUBMITTED": AppState.PENDING,
    "PENDING": AppState.PENDING,
    "RUNNABLE": AppState.PENDING,
    "STARTING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}
SAGEMAKER_JOB_STATE: dict[str, AppState] = {
    "InProgress": AppState.RUNNING,
    "Completed": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Stopping": AppState.CANCELLED,
    "Stopped": AppState.CANCELLED,
}


class ResourceType(IntEnum):
    """What a container of AWS Batch asks for."""

    VCPU = 1
    GPU = 2
    MEMORY = 3

    @staticmethod
    def from_str(resource_type: str) -> ResourceType:
        """Return the resource type with this name."""
        return ResourceType[resource_type.upper()]


def resource_requirements_from_resource(resource: Resource) -> list[dict[str, str]]:
    """Return what a resource asks for, as AWS Batch takes it."""
    return requirements(resource)


def resource_from_resource_requirements(resource_requirements: Iterable[Mapping[str, str]]) -> Resource:
    """Return the resource that a request to AWS Batch asks for."""
    asked = {each["type"]: int(float(each["value"])) for each in resource_requirements}
    return Resource(cpu=asked.get("VCPU", 0), gpu=asked.get("GPU", 0), memMB=asked.get("MEMORY", 0))


def to_millis_since_epoch(ts: datetime) -> int:
    """Return a time in milliseconds since the epoch; one without a zone is taken for UTC."""
    zoned = ts if ts.tzinfo else ts.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)


def to_datetime(ms_since_epoch: int) -> datetime:
    """Return the time, in UTC and without a zone."""
    return datetime.fromtimestamp(ms_since_epoch / 1000, UTC).replace(tzinfo=None)


def parse_ulimits(ulimits_list: Iterable[str]) -> list[dict[str, Any]]:
    """Read ``name:soft:hard``.

    Raises:
        ValueError: one is of another form.
    """
    limits = []
    for text in ulimits_list:
        name, _, rest = text.partition(":")
        soft, colon, hard = rest.partition(":")
        if not name or not soft or not colon:
            raise ValueError(f"the limit {text!r} is not of the form name:soft:hard")
        limits.append({"name": name, "softLimit": int(soft), "hardLimit": int(hard)})
    return limits
