"""TorchX's names for Kubernetes (``torchx.schedulers.kubernetes_scheduler``)."""

from __future__ import annotations

import logging
from typing import Any

from shunter.compat.torchx_version import __version__
from shunter.schedulers.kubernetes_scheduler.names import label_value
from shunter.schedulers.kubernetes_scheduler.request import KubernetesJob as KubernetesJob
from shunter.schedulers.kubernetes_scheduler.scheduler import create_scheduler
from shunter.specs.app import AppDef, RetryPolicy, Role
from shunter.specs.status import AppState

logger = logging.getLogger(__name__)
RESERVED_MILLICPU = 100
RESERVED_MEMMB = 1024
PLACEHOLDER_FIELD_PATH = "[FIELD_PATH]"
ANNOTATION_ISTIO_SIDECAR = "sidecar.istio.io/inject"
LABEL_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
LABEL_VERSION = "torchx.pytorch.org/version"
LABEL_APP_NAME = "torchx.pytorch.org/app-name"
LABEL_ROLE_INDEX = "torchx.pytorch.org/role-index"
LABEL_ROLE_NAME = "torchx.pytorch.org/role-name"
LABEL_REPLICA_ID = "torchx.pytorch.org/replica-id"
LABEL_KUBE_APP_NAME = "app.kubernetes.io/name"
LABEL_ORGANIZATION = "app.kubernetes.io/managed-by"
LABEL_UNIQUE_NAME = "app.kubernetes.io/instance"

#: What a Volcano job does when a pod fails.
RETRY_POLICIES: dict[RetryPolicy, list[dict[str, str]]] = {
    RetryPolicy.REPLICA: [],
    RetryPolicy.APPLICATION: [
        {"event": "PodEvicted", "action": "RestartJob"},
        {"event": "PodFailed", "action": "RestartJob"},
    ],
}
#: Phases of a Volcano job.
JOB_STATE: dict[str, AppState] = {
    "Pending": AppState.PENDING,
    "Aborting": AppState.RUNNING,
    "Aborted": AppState.CANCELLED,
    "Running": AppState.RUNNING,
    "Restarting": AppState.RUNNING,
    "Completing": AppState.RUNNING,
    "Completed": AppState.SUCCEEDED,
    "Terminating": AppState.RUNNING,
    "Terminated": AppState.FAILED,
    "Failed": AppState.FAILED,
}
#: Phases of its tasks.
TASK_STATE: dict[str, AppState] = {
    "Pending": AppState.PENDING,
    "Allocated": AppState.PENDING,
    "Pipelined": AppState.PENDING,
    "Binding": AppState.PENDING,
    "Bound": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Releasing": AppState.RUNNING,
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
    "Unknown": AppState.UNKNOWN,
}


def app_to_resource(
    app: AppDef,
    queue: str,
    service_account: str | None,
    priority_class: str | None = None,
    reserved_millicpu: int = RESERVED_MILLICPU,
    reserved_memmb: int = RESERVED_MEMMB,
    efa_device_count: int | None = None,
) -> dict[str, Any]:
    """Return the Volcano job that our scheduler makes of a job."""
    scheduler = create_scheduler("torchx")
    cfg = {
        "queue": queue,
        "service_account": service_account,
        "priority_class": priority_class,
        "reserved_millicpu": reserved_millicpu,
        "reserved_memmb": reserved_memmb,
        "efa_device_count": efa_device_count,
        "kind": "volcano",
    }
    try:
        info = scheduler.submit_dryrun(app, {key: value for key, value in cfg.items() if value is not None})
    finally:
        scheduler.close()
    manifests: list[dict[str, Any]] = info.request.manifests
    return next(each for each in manifests if each["apiVersion"].startswith("batch.volcano.sh"))


def role_to_pod(
    name: str,
    role: Role,
    service_account: str | None,
    reserved_millicpu: int = RESERVED_MILLICPU,
    reserved_memmb: int = RESERVED_MEMMB,
    efa_device_count: int | None = None,
) -> dict[str, Any]:
    """Return the pod that our scheduler makes of a role, as a mapping."""
    job = app_to_resource(
        AppDef(name, [role]),
        "default",
        service_account,
        reserved_millicpu=reserved_millicpu,
        reserved_memmb=reserved_memmb,
        efa_device_count=efa_device_count,
    )
    template: dict[str, Any] = job["spec"]["tasks"][0]["template"]
    template.setdefault("metadata", {})["name"] = name
    return {"apiVersion": "v1", "kind": "Pod", **template}


def pod_labels(app: AppDef, role_idx: int, role: Role, replica_id: int, app_id: str) -> dict[str, str]:
    """Return the labels that TorchX gives to a pod."""
    labels = {
        LABEL_VERSION: __version__,
        LABEL_APP_NAME: app.name,
        LABEL_ROLE_INDEX: str(role_idx),
        LABEL_ROLE_NAME: role.name,
        LABEL_REPLICA_ID: str(replica_id),
        LABEL_KUBE_APP_NAME: app.name,
        LABEL_ORGANIZATION: "torchx.pytorch.org",
        LABEL_UNIQUE_NAME: app_id,
    }
    return {key: label_value(value) for key, value in labels.items()}


def prefix_container_name(container_name: str, role_name: str, replica_id: int) -> str:
    """Return the prefix of log lines from a pod with several containers."""
    return f"{role_name}/{replica_id}/{container_name}"


def sanitize_for_serialization(obj: object) -> object:
    """Return an object of Kubernetes' client as JSON values; plain values as they are."""
    if isinstance(obj, (dict, list, str, int, float, type(None))):
        return obj
    from kubernetes import client

    return client.ApiClient().sanitize_for_serialization(obj)
