"""Map the cluster's evidence about a job or replica to a reason, from which its state follows.

States are those of Jobs, JobSets and Volcano jobs, and of their pods
(https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/). One that is not known counts as open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.names import inner
from shunter.specs.status import NONE, AppState, error_message

SUCCEEDED = "succeeded"
RUNNING = "running"
WAITING = "waiting"
TROUBLED = "troubled"
SUSPENDED = "suspended"
CANCELLED = "cancelled"
EXIT = "exit"
TIMEOUT = "timeout"
FAILED = "failed"
UNKNOWN = "unknown"

STATE_OF_REASON: dict[str, AppState] = {
    SUCCEEDED: AppState.SUCCEEDED,
    RUNNING: AppState.RUNNING,
    WAITING: AppState.PENDING,
    TROUBLED: AppState.PENDING,
    SUSPENDED: AppState.SUSPENDED,
    CANCELLED: AppState.CANCELLED,
    EXIT: AppState.FAILED,
    TIMEOUT: AppState.FAILED,
    FAILED: AppState.FAILED,
    UNKNOWN: AppState.UNKNOWN,
}


class KubeReason(NamedTuple):
    """Why a job or replica is in its state."""

    code: str
    text: str = ""

    @property
    def state(self) -> AppState:
        """The state that follows."""
        return STATE_OF_REASON[self.code]


# ---- jobs

_JOB_FAILURES = {
    "DeadlineExceeded": (TIMEOUT, "stopped at its time limit"),
    "BackoffLimitExceeded": (FAILED, "a replica failed"),
    "PodFailurePolicy": (FAILED, "an exit code that is final"),
    "FailedIndexes": (FAILED, "some replicas failed"),
    "MaxFailedIndexesExceeded": (FAILED, "too many replicas failed"),
}
_PHASES = {
    "Pending": WAITING,
    "Inqueue": WAITING,
    "Running": RUNNING,
    "Aborted": CANCELLED,
    "Completed": SUCCEEDED,
    "Terminated": FAILED,
    "Failed": FAILED,
}


def job_reason(job: Mapping[str, Any]) -> KubeReason:
    """Return the reason of a Job, JobSet or Volcano job."""
    if str(job.get("apiVersion", "")).startswith("batch.volcano.sh/"):
        return _of_volcano(job)
    return _of_job(job)


def true_conditions(item: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the conditions of an object that hold, by type."""
    conditions = inner(item, "status", "conditions")
    return {each.get("type", ""): each for each in conditions if each.get("status") == "True"}


def _of_job(job: Mapping[str, Any]) -> KubeReason:
    """Return the reason of a Job or JobSet: first from its conditions, then from how many pods it has."""
    conditions = true_conditions(job)
    cancelled = names.annotations_of(job).get(names.NOTE_CANCELLED, "")
    counts = [job["status"], *inner(job, "status", "replicatedJobsStatus")] if job.get("status") else []
    active = any(each.get("active") for each in counts)
    is_suspended = not active and bool("Suspended" in conditions or inner(job, "spec").get("suspend"))
    if "Complete" in conditions or "Completed" in conditions:
        return KubeReason(SUCCEEDED)
    if cancelled and ("Failed" in conditions or is_suspended):
        return KubeReason(CANCELLED, cancelled)
    if "Failed" in conditions:
        condition = conditions["Failed"]
        why, message = str(condition.get("reason") or ""), condition.get("message")
        code, text = _JOB_FAILURES.get(why, (FAILED, why))
        return KubeReason(code, _sentence(text, message))
    if cancelled:
        return KubeReason(RUNNING, f"being stopped: {cancelled}")
    if is_suspended:
        return KubeReason(SUSPENDED, "suspended")
    if inner(job, "metadata").get("deletionTimestamp"):
        return KubeReason(RUNNING, "being deleted")
    has_begun = any(each.get(key) for each in counts for key in ("ready", "succeeded", "failed"))
    if has_begun or "FailureTarget" in conditions:
        return KubeReason(RUNNING)
    return KubeReason(WAITING, "its pods are starting" if active else "its pods have not been created yet")


def _of_volcano(job: Mapping[str, Any]) -> KubeReason:
    state = inner(job, "status", "state")
    phase, message = str(state.get("phase") or "Pending"), str(state.get("message") or "")
    code = _PHASES.get(phase, RUNNING)
    if code == CANCELLED:
        message = names.annotations_of(job).get(names.NOTE_CANCELLED) or message
    if phase not in _PHASES:
        message = f"{phase}: {message}" if message else phase
    elif not message and code in (WAITING, FAILED):
        message = phase
    return KubeReason(code, message)


# ---- pods

_IMAGE_TROUBLES = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
)
_START_TROUBLES = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
    "ContainerCannotRun",
)


def main_container(pod: Mapping[str, Any]) -> str:
    """Return the name of a pod's container that runs the program: the first one."""
    containers = inner(pod, "spec", "containers") or [{}]
    return str(containers[0].get("name", ""))


def failed_init(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the init container because of which a pod has failed; empty without one."""
    status = inner(pod, "status")
    # a sidecar may fail when the program has ended
    began = any(inner(main, "state", "terminated") for main in inner(status, "containerStatuses"))
    if status.get("phase") == "Failed" and not began:
        for each in inner(status, "initContainerStatuses"):
            if inner(each, "state", "terminated").get("exitCode"):
                container: Mapping[str, Any] = each
                return container
    return {}


def logged_container(pod: Mapping[str, Any]) -> str:
    """Return the name of the container whose log is that of the replica."""
    return str(failed_init(pod).get("name") or main_container(pod))


def container_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the container that runs the program, or of the init container that prevented it.

    Empty before there is one.
    """
    name = main_container(pod)
    statuses = inner(pod, "status", "containerStatuses")
    return failed_init(pod) or next((each for each in statuses if each.get("name") == name), {})


def last_end(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how the program ended, as the kubelet reports it; empty if it has not."""
    end: Mapping[str, Any] = inner(container_status(pod), "state", "terminated")
    return end


def pod_reason(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]] = ()) -> KubeReason:
    """Return the reason of a pod.

    Args:
        pod: the pod.
        events: what happened to it, the latest last; asked for only while it does not run.
    """
    phase = inner(pod, "status").get("phase")
    if phase == "Succeeded":
        return KubeReason(SUCCEEDED)
    if phase == "Failed":
        return _failed_pod(pod)
    if phase == "Running":
        return KubeReason(RUNNING, _trouble_of_running(pod))
    if phase in ("Pending", None):
        return _pending_pod(pod, list(events))
    return KubeReason(UNKNOWN, f"{phase}: its node does not report")


def _trouble_of_running(pod: Mapping[str, Any]) -> str:
    """Return what is wrong with a pod whose phase is Running, which it keeps when its node is lost; or ""."""
    waiting = inner(container_status(pod), "state", "waiting")
    if waiting.get("reason"):
        return _sentence(waiting["reason"], waiting.get("message"))
    conditions = true_conditions(pod)
    disruption = conditions.get("DisruptionTarget")
    if disruption:
        return f"being taken away: {_sentence(disruption.get('reason'), disruption.get('message'))}"
    if inner(pod, "metadata").get("deletionTimestamp"):
        return "being stopped"
    known = {each.get("type") for each in inner(pod, "status", "conditions")}
    # the controller of nodes takes back Ready alone: the kubelet, which reports of containers, is silent
    if "ContainersReady" in conditions and "Ready" in known and "Ready" not in conditions:
        return f"its node ({inner(pod, 'spec').get('nodeName') or 'unknown'}) does not report"
    return ""


def _failed_pod(pod: Mapping[str, Any]) -> KubeReason:
    status, end = inner(pod, "status"), last_end(pod)
    disruption = true_conditions(pod).get("DisruptionTarget")
    why, message = status.get("reason"), status.get("message")
    if disruption:
        # the kubelet evicts for want of disk or memory, which is no preemption
        what = "evicted" if disruption.get("reason") == "TerminationByKubelet" else "taken away"
        text = _sentence(disruption.get("reason"), disruption.get("message") or message)
        return KubeReason(FAILED, f"{what}: {text}")
    if why == "DeadlineExceeded":
        return KubeReason(TIMEOUT, "stopped at its time limit")
    if end.get("reason") == "OOMKilled":
        limit = inner(pod["spec"]["containers"][0], "resources", "limits").get("memory")
        return KubeReason(FAILED, f"out of memory (limit {limit})" if limit else "out of memory")
    if why:
        return KubeReason(FAILED, _sentence(why, message))
    if not end:
        return KubeReason(FAILED, str(message or "failed before its container ran"))
    line = _last_line(end) if report_of(end) == NONE else error_message(report_of(end))[0]
    if end.get("reason") in _START_TROUBLES:
        return KubeReason(FAILED, f"could not be started: {line}")
    code = f"exit code {end.get('exitCode')}"
    init = failed_init(pod)
    if init:
        code = f"its init container {init.get('name')} failed: {code}"
    return KubeReason(EXIT, f"{code}: {line}" if line else code)


def _pending_pod(pod: Mapping[str, Any], events: list[Mapping[str, Any]]) -> KubeReason:
    status = inner(pod, "status")
    for each in inner(status, "conditions"):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return KubeReason(TROUBLED, f"no node for it: {each.get('message') or each.get('reason')}")
    # it has a node, so what the scheduler said before is over
    cause = cause_of(events, lambda reason: reason != "FailedScheduling")
    waits = WAITING, ""
    for each in [*inner(status, "initContainerStatuses"), *inner(status, "containerStatuses")]:
        waiting = inner(each, "state", "waiting")
        why, message = waiting.get("reason"), waiting.get("message")
        if why in _IMAGE_TROUBLES:
            if why != "ErrImagePull":
                message = cause_of(events, lambda reason: reason == "Failed") or message
            return KubeReason(TROUBLED, f"its image cannot be pulled: {_sentence(why, message)}")
        if why in _START_TROUBLES:
            return KubeReason(TROUBLED, f"cannot be started: {_sentence(why, message)}")
        if why and not waits[1]:
            is_usual = why in ("ContainerCreating", "PodInitializing")
            waits = WAITING if is_usual else TROUBLED, _sentence(why, message)
    if cause:
        return KubeReason(TROUBLED, cause)
    node = inner(pod, "spec").get("nodeName")
    return KubeReason(waits[0], waits[1] or (f"starting on {node}" if node else "waiting for a node"))


#: Events that repeat that there is trouble, without its cause.
_REPEATED = re.compile(
    r"timed out waiting for the condition|^Error: (ErrImagePull|ImagePullBackOff)|^Back-off|"
    r"context deadline exceeded",
    re.IGNORECASE,
)


def cause_of(events: Iterable[Mapping[str, Any]], is_asked_for: Callable[[str], bool]) -> str:
    """Return the latest warning of these reasons that names a cause, or else the latest; "" without one."""
    trouble = [
        event
        for event in sorted(events, key=_event_time)
        if event.get("type") == "Warning" and is_asked_for(str(event.get("reason")))
    ]
    telling = [event for event in trouble if not _REPEATED.search(str(event.get("message") or ""))]
    latest = (telling or trouble)[-1:]
    return _sentence(latest[0].get("reason"), latest[0].get("message")) if latest else ""


def _event_time(event: Mapping[str, Any]) -> str:
    """Return when an event last happened, as text that sorts."""
    times = (
        inner(event, "series").get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        inner(event, "metadata").get("creationTimestamp"),
    )
    return str(next(filter(None, times), ""))


def _sentence(reason: Any, message: Any) -> str:
    text = " ".join(str(message or "").split())
    return f"{reason}: {text}" if reason and text and str(reason) not in text else text or str(reason or "")


def _last_line(end: Mapping[str, Any]) -> str:
    lines = [line.strip() for line in str(end.get("message") or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def report_of(end: Mapping[str, Any]) -> str:
    """Return the failure report in a program's last message, as JSON; ``<NONE>`` without one."""
    message = str(end.get("message") or "").strip()
    try:
        return message if isinstance(json.loads(message), dict) else NONE
    except (ValueError, RecursionError):
        return NONE
