"""Schedulers that TorchX itself has removed and shunter does not have: GCP Batch and MCAD.

Their names can be imported, so that code that mentions them runs; making one says what to use instead.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, TypedDict

from shunter.schedulers.registry import unknown_scheduler
from shunter.specs.status import AppState

logger = logging.getLogger(__name__)

# ---- GCP Batch
BATCH_LOGGER_NAME = "batch_task_logs"
DEFAULT_LOC = "us-central1"
LABEL_VERSION = "torchx_version"
LABEL_APP_NAME = "torchx_app_name"
LOCATIONS = [DEFAULT_LOC, "us-west1", "us-east1", "asia-southeast1", "europe-north1", "europe-west6"]
GPU_COUNT_TO_TYPE = {count: f"a2-highgpu-{count}g" for count in (1, 2, 4, 8, 16)}
GPU_TYPE_TO_COUNT = {name: count for count, name in GPU_COUNT_TO_TYPE.items()}
GCP_JOB_STATE: dict[str, AppState] = {
    "STATE_UNSPECIFIED": AppState.UNKNOWN,
    "QUEUED": AppState.SUBMITTED,
    "SCHEDULED": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
    "DELETION_IN_PROGRESS": AppState.UNKNOWN,
}


class GCPBatchOpts(TypedDict, total=False):
    """Options of GCP Batch."""

    project: str | None
    location: str | None


@dataclass
class GCPBatchJob:
    """A job of GCP Batch."""

    name: str
    project: str
    location: str
    job_def: Any = None


class GCPBatchScheduler:
    """Not there: see `create_gcp_batch`."""

    def __init__(self, session_name: str, client: Any = None, **kwargs: Any) -> None:
        create_gcp_batch(session_name, client)


def create_gcp_batch(session_name: str, client: Any = None, **kwargs: Any) -> Any:
    """Say what to use instead.

    Raises:
        UnknownSchedulerException: always.
    """
    raise unknown_scheduler("gcp_batch", ())


# ---- MCAD


class KubernetesMCADOpts(TypedDict, total=False):
    """Options of MCAD."""

    namespace: str | None
    image_repo: str | None
    service_account: str | None
    priority: int | None
    priority_class_name: str | None
    image_secret: str | None
    coscheduler_name: str | None
    network: str | None


@dataclass
class KubernetesMCADJob:
    """A job of MCAD."""

    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict)
    resource: dict[str, Any] = field(default_factory=dict)


class KubernetesMCADScheduler:
    """Not there: see `create_kubernetes_mcad`."""

    def __init__(
        self, session_name: str, client: Any = None, docker_client: Any = None, **kwargs: Any
    ) -> None:
        create_kubernetes_mcad(session_name, client, docker_client)


def create_kubernetes_mcad(
    session_name: str, client: Any = None, docker_client: Any = None, **kwargs: Any
) -> Any:
    """Say what to use instead.

    Raises:
        UnknownSchedulerException: always.
    """
    raise unknown_scheduler("kubernetes_mcad", ())
