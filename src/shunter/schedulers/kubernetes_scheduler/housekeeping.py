"""Cancel and delete jobs, and find objects that jobs left behind.

Kubernetes has no call that stops a Job and keeps it. A Job is given a time limit that has already passed, so
that it fails at once, and a note that says who cancelled it. A JobSet is suspended, a Volcano job aborted. A
job that waits in a queue of Kueue is taken out of it (``spec.active`` of its Workload). In each case the pods
are stopped, and are then gone with their logs.
"""

from __future__ import annotations

import time
from typing import Any

from shunter.schedulers.api import not_ended
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.api_server import ApiServer, KubernetesError
from shunter.schedulers.kubernetes_scheduler.jobs import (
    ClusterJob,
    core_path,
    list_jobs,
    list_path,
    workloads,
    workloads_path,
)
from shunter.schedulers.kubernetes_scheduler.names import seconds
from shunter.schedulers.kubernetes_scheduler.options import JOB, VOLCANO
from shunter.schedulers.kubernetes_scheduler.states import job_reason
from shunter.schedulers.responses import Leftover
from shunter.specs.status import is_terminal
from shunter.system.identity import user_name

COMMANDS = "/apis/bus.volcano.sh/v1alpha1"


def cancel(job: ClusterJob) -> None:
    """Stop a job that has not ended.

    Raises:
        KubernetesError: the server refused it, or could not be reached.
    """
    note = f"cancelled by {user_name()} with shunter"
    for item in job.objects:
        if is_terminal(job_reason(item).state):
            continue
        path = f"{list_path(job.kind, job.namespace)}/{names.name_of(item)}"
        change: dict[str, object] = {"metadata": {"annotations": {names.NOTE_CANCELLED: note}}}
        if job.kind == JOB:
            change["spec"] = {"activeDeadlineSeconds": 1}
        elif job.kind != VOLCANO:
            change["spec"] = {"suspend": True}
        try:
            job.server.merge(path, change)
        except KubernetesError as error:
            if error.status != 404:  # it was removed meanwhile
                raise
            continue
        if job.kind == VOLCANO:
            _abort(job, item)
    if names.labels_of(job.objects[0]).get(names.QUEUE_LABEL):
        for workload in workloads(job):
            job.server.merge(f"{workloads_path(job)}/{names.name_of(workload)}", {"spec": {"active": False}})


def _abort(job: ClusterJob, item: dict[str, Any]) -> None:
    """Have Volcano abort a job, by a Command, as vcctl does."""
    name = names.name_of(item)
    target = {"apiVersion": item["apiVersion"], "kind": "Job", "name": name, "controller": True}
    target["uid"] = item["metadata"].get("uid", "")
    command = {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {
            "generateName": f"{name}-abort-",
            "namespace": job.namespace,
            "ownerReferences": [target],
        },
        "action": "AbortJob",
        "target": target,
    }
    job.server.create(f"{COMMANDS}/namespaces/{job.namespace}/commands", command, attempts=1)


def delete(job: ClusterJob) -> None:
    """Delete everything that belongs to a job: pods and logs go too.

    Raises:
        ConfigError: it has not ended.
        KubernetesError: the server refused it or could not be reached; it can be repeated.
    """
    if not job.has_ended:
        raise not_ended(job.app_id, job.reason.state)
    path = list_path(job.kind, job.namespace)
    job.server.request("DELETE", path, labelSelector=job.selector, propagationPolicy="Background")
    for path in (core_path("services", job.namespace), core_path("secrets", job.namespace)):
        for each in job.server.metadata(path, labelSelector=job.selector):
            job.server.delete(f"{path}/{names.name_of(each)}")


def unused(server: ApiServer, namespace: str, older_than: float) -> list[Leftover]:
    """Return Secrets and Services of ours that no job needs, older than some seconds.

    Code is not needed any more when its job has ended.
    """
    now = time.time()
    jobs = list_jobs(server, namespace)
    known, running = {job.name for job in jobs}, {job.name for job in jobs if not job.has_ended}
    leftovers = []
    for plural in ("secrets", "services"):
        path = core_path(plural, namespace)
        for item in server.metadata(path, labelSelector=names.LABEL_JOB):
            labels = names.labels_of(item)
            job = labels[names.LABEL_JOB]
            age = now - (seconds(item["metadata"].get("creationTimestamp")) or now)
            needed = running if names.LABEL_CODE in labels else known
            if job not in needed and age >= older_than:
                name = f"{plural.removesuffix('s')} {names.name_of(item)}"
                app_id = names.make_app_id(namespace, job)
                leftovers.append(Leftover(f"{path}/{names.name_of(item)}", name, age, app_id=app_id))
    return leftovers
