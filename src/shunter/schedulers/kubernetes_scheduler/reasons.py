"""Map the cluster's evidence about a job or replica to a reason, from which its state follows.

States are those of Jobs, JobSets and Volcano jobs, and of their pods
(https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/). One that is not known counts as open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from shunter.schedulers.kubernetes_scheduler import names
from shunter.specs.status import NONE, AppState, error_message

SUCCEEDED = "succeeded"
RUNNING = "running"
WAITING = "waiting"
SUSPENDED = "suspended"
UNSCHEDULABLE = "unschedulable"
IMAGE_NOT_PULLED = "no_image"
NOT_STARTED = "not_started"
REFUSED = "refused"
CANCELLED = "cancelled"
STOPPED = "stopped"
EXIT = "exit"
OUT_OF_MEMORY = "out_of_memory"
TAKEN_AWAY = "taken_away"
TIMEOUT = "timeout"
FAILED = "failed"
UNKNOWN = "unknown"

STATE_OF_REASON: dict[str, AppState] = {
    SUCCEEDED: AppState.SUCCEEDED,
    RUNNING: AppState.RUNNING,
    WAITING: AppState.PENDING,
    SUSPENDED: AppState.SUSPENDED,
    UNSCHEDULABLE: AppState.PENDING,
    IMAGE_NOT_PULLED: AppState.PENDING,
    NOT_STARTED: AppState.PENDING,
    REFUSED: AppState.PENDING,
    CANCELLED: AppState.CANCELLED,
    STOPPED: AppState.CANCELLED,
    EXIT: AppState.FAILED,
    OUT_OF_MEMORY: AppState.FAILED,
    TAKEN_AWAY: AppState.FAILED,
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


def job_reason(job: Mapping[str, Any]) -> KubeReason:
    """Return the reason of a Job, JobSet or Volcano job."""
    if job.get("kind") == "JobSet":
        return _of_jobset(job)
    if str(job.get("apiVersion", "")).startswith("batch.volcano.sh/"):
        return _of_volcano(job)
    return _of_job(job)


def _true_conditions(item: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    conditions = (item.get("status") or {}).get("conditions") or []
    return {each.get("type", ""): each for each in conditions if each.get("status") == "True"}


def _of_job(job: Mapping[str, Any]) -> KubeReason:
    status, conditions = job.get("status") or {}, _true_conditions(job)
    cancelled = names.annotations_of(job).get(names.NOTE_CANCELLED)
    active = status.get("active") or 0
    if "Complete" in conditions:
        return KubeReason(SUCCEEDED)
    if "Failed" in conditions:
        return (
            KubeReason(CANCELLED, cancelled) if cancelled else _failure(conditions["Failed"], _JOB_FAILURES)
        )
    if cancelled and not active and (job.get("spec") or {}).get("suspend"):
        return KubeReason(CANCELLED, cancelled)
    if cancelled:
        return KubeReason(RUNNING, f"being stopped: {cancelled}")
    if not active and ("Suspended" in conditions or (job.get("spec") or {}).get("suspend")):
        return KubeReason(SUSPENDED, "suspended")
    if (job.get("metadata") or {}).get("deletionTimestamp"):
        return KubeReason(RUNNING, "being deleted")
    if (
        status.get("ready")
        or status.get("succeeded")
        or status.get("failed")
        or "FailureTarget" in conditions
    ):
        return KubeReason(RUNNING)
    return KubeReason(WAITING, "its pods are starting" if active else "its pods have not been created yet")


def _failure(condition: Mapping[str, Any], known: Mapping[str, tuple[str, str]]) -> KubeReason:
    code, text = known.get(str(condition.get("reason")), (FAILED, str(condition.get("reason") or "")))
    message = str(condition.get("message") or "")
    return KubeReason(code, f"{text}: {message}" if text and message else text or message)


def _of_jobset(job: Mapping[str, Any]) -> KubeReason:
    status, conditions = job.get("status") or {}, _true_conditions(job)
    cancelled = names.annotations_of(job).get(names.NOTE_CANCELLED)
    roles = status.get("replicatedJobsStatus") or []
    if "Completed" in conditions:
        return KubeReason(SUCCEEDED)
    if "Failed" in conditions:
        return KubeReason(CANCELLED, cancelled) if cancelled else _failure(conditions["Failed"], {})
    active = any(each.get("active") for each in roles)
    if cancelled:
        ended = "Suspended" in conditions and not active
        return (
            KubeReason(CANCELLED, cancelled) if ended else KubeReason(RUNNING, f"being stopped: {cancelled}")
        )
    if "Suspended" in conditions or ((job.get("spec") or {}).get("suspend") and not active):
        return KubeReason(SUSPENDED, "suspended")
    if any(each.get(key) for each in roles for key in ("ready", "succeeded", "failed")):
        return KubeReason(RUNNING)
    return KubeReason(WAITING, "its pods are starting" if active else "its Jobs have not been created yet")


_PHASES = {
    "Pending": WAITING,
    "Inqueue": WAITING,
    "Running": RUNNING,
    "Restarting": RUNNING,
    "Completing": RUNNING,
    "Terminating": RUNNING,
    "Aborting": RUNNING,
    "Aborted": CANCELLED,
    "Completed": SUCCEEDED,
    "Terminated": FAILED,
    "Failed": FAILED,
}


def _of_volcano(job: Mapping[str, Any]) -> KubeReason:
    state = (job.get("status") or {}).get("state") or {}
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
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    return str(containers[0].get("name", ""))


def container_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the container that runs the program, or of the init container that prevented it.

    Empty before there is one.
    """
    failed = failed_init(pod)
    if failed:
        return failed
    wanted = main_container(pod)
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each.get("name") == wanted), {})


def failed_init(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the init container because of which a pod has failed; empty without one."""
    status = pod.get("status") or {}
    if status.get("phase") != "Failed":
        return {}
    for each in status.get("initContainerStatuses") or []:
        if ((each.get("state") or {}).get("terminated") or {}).get("exitCode"):
            began = any(
                (main.get("state") or {}).get("terminated") for main in status.get("containerStatuses") or []
            )
            return {} if began else each  # a sidecar may fail when the program has ended
    return {}


def logged_container(pod: Mapping[str, Any]) -> str:
    """Return the name of the container whose log is that of the replica."""
    return str(failed_init(pod).get("name") or main_container(pod))


def last_end(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how the program ended, as the kubelet reports it; empty if it has not."""
    status = container_status(pod)
    return (status.get("state") or {}).get("terminated") or {}


def pod_reason(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]] = ()) -> KubeReason:
    """Return the reason of a pod.

    Args:
        pod: the pod.
        events: what happened to it, the latest last; asked for only while it does not run.
    """
    status = pod.get("status") or {}
    phase = status.get("phase")
    if phase == "Succeeded":
        return KubeReason(SUCCEEDED)
    if phase == "Failed":
        return _failed_pod(pod)
    if phase == "Running":
        waiting = (container_status(pod).get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return KubeReason(RUNNING, _sentence(waiting["reason"], waiting.get("message")))
        return KubeReason(RUNNING, _trouble_of_running(pod))
    if phase in ("Pending", None):
        return _pending_pod(pod, events)
    return KubeReason(UNKNOWN, f"{phase}: its node does not report")


def _trouble_of_running(pod: Mapping[str, Any]) -> str:
    """Return what is wrong with a pod whose phase is Running, which it keeps when its node is lost; or ""."""
    conditions = _true_conditions(pod)
    disruption = conditions.get("DisruptionTarget")
    if disruption:
        return f"being taken away: {_sentence(disruption.get('reason'), disruption.get('message'))}"
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        return "being stopped"
    known = {each.get("type") for each in (pod.get("status") or {}).get("conditions") or []}
    # the controller of nodes takes back Ready alone: the kubelet, which reports of containers, is silent
    if "ContainersReady" in conditions and "Ready" in known and "Ready" not in conditions:
        node = (pod.get("spec") or {}).get("nodeName") or "unknown"
        return f"its node ({node}) does not report"
    return ""


def _failed_pod(pod: Mapping[str, Any]) -> KubeReason:
    status, end = pod.get("status") or {}, last_end(pod)
    disruption = _true_conditions(pod).get("DisruptionTarget")
    why = status.get("reason")
    if disruption:
        # the kubelet evicts for want of disk or memory, which is no preemption
        what = "evicted" if disruption.get("reason") == "TerminationByKubelet" else "taken away"
        said = disruption.get("message") or status.get("message")
        return KubeReason(TAKEN_AWAY, f"{what}: {_sentence(disruption.get('reason'), said)}")
    if why == "DeadlineExceeded":
        return KubeReason(TIMEOUT, "stopped at its time limit")
    if why and not end.get("exitCode"):
        return KubeReason(FAILED, _sentence(why, status.get("message")))
    if end.get("reason") == "OOMKilled":
        limits = ((pod["spec"]["containers"][0].get("resources") or {}).get("limits")) or {}
        limit = f" (limit {limits['memory']})" if limits.get("memory") else ""
        return KubeReason(OUT_OF_MEMORY, f"out of memory{limit}")
    if why:
        return KubeReason(FAILED, _sentence(why, status.get("message")))
    if not end:
        return KubeReason(FAILED, str(status.get("message") or "failed before its container ran"))
    if end.get("reason") in _START_TROUBLES:
        return KubeReason(FAILED, f"could not be started: {_last_line(end)}")
    line = _last_line(end) if report_of(end) == NONE else error_message(report_of(end))[0]
    code = f"exit code {end.get('exitCode')}"
    init = failed_init(pod)
    if init:
        code = f"its init container {init.get('name')} failed: {code}"
    return KubeReason(EXIT, f"{code}: {line}" if line else code)


def _pending_pod(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> KubeReason:
    status = pod.get("status") or {}
    for each in status.get("conditions") or []:
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return KubeReason(UNSCHEDULABLE, f"no node for it: {each.get('message') or each.get('reason')}")
    # it has a node, so what the scheduler said before is over
    trouble = [event for event in events if event.get("reason") != "FailedScheduling"]
    said = _cause(trouble)
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for each in statuses:
        waiting = (each.get("state") or {}).get("waiting") or {}
        why, message = waiting.get("reason"), waiting.get("message")
        if why in _IMAGE_TROUBLES:
            pulls = [event for event in trouble if event.get("reason") == "Failed"]
            detail = message if why == "ErrImagePull" else _cause(pulls) or message
            return KubeReason(IMAGE_NOT_PULLED, f"its image cannot be pulled: {_sentence(why, detail)}")
        if why in _START_TROUBLES:
            return KubeReason(NOT_STARTED, f"cannot be started: {_sentence(why, message)}")
        if why and not said:
            return KubeReason(WAITING, _sentence(why, message))
    if said:
        return KubeReason(NOT_STARTED, said)
    node = (pod.get("spec") or {}).get("nodeName")
    return KubeReason(WAITING, f"starting on {node}" if node else "waiting for a node")


def is_only_waiting(text: str) -> bool:
    """Tell whether a pending pod's reason names no trouble."""
    return text.startswith(("starting on ", "waiting for a node", "ContainerCreating", "PodInitializing"))


def made_no_pods(events: Iterable[Mapping[str, Any]]) -> str:
    """Return why a Job has no pods, from its events: quota, policies, ...; "" if unknown."""
    return _cause(each for each in events if each.get("reason") == "FailedCreate")


#: Events that repeat that there is trouble, without its cause.
_REPEATED = re.compile(
    r"timed out waiting for the condition|^Error: (ErrImagePull|ImagePullBackOff)|^Back-off|"
    r"context deadline exceeded",
    re.IGNORECASE,
)


def _cause(events: Iterable[Mapping[str, Any]]) -> str:
    """Return the latest warning that names a cause, or else the latest; "" if there is none."""
    trouble = [event for event in events if event.get("type") == "Warning"]
    telling = [event for event in trouble if not _REPEATED.search(str(event.get("message") or ""))]
    return _event_text((telling or trouble)[-1]) if trouble else ""


def _event_text(event: Mapping[str, Any]) -> str:
    return _sentence(event.get("reason"), event.get("message"))


def event_time(event: Mapping[str, Any]) -> str:
    """Return when an event last happened, as text that sorts."""
    series = event.get("series") or {}
    metadata = event.get("metadata") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or metadata.get("creationTimestamp")
        or ""
    )


def _sentence(reason: Any, message: Any) -> str:
    text = " ".join(str(message or "").split())
    return f"{reason}: {text}" if reason and text and str(reason) not in text else text or str(reason or "")


def _last_line(end: Mapping[str, Any]) -> str:
    lines = [line.strip() for line in str(end.get("message") or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def report_of(end: Mapping[str, Any]) -> str:
    """Return the failure report in a program's last message, as JSON; ``<NONE>`` without one."""
    message = str(end.get("message") or "").strip()
    if not message.startswith("{"):
        return NONE
    try:
        return message if isinstance(json.loads(message), dict) else NONE
    except (ValueError, RecursionError):
        return NONE


def seconds(stamp: Any) -> float | None:
    """Return a time of Kubernetes in seconds since the epoch; None without one.

    A container that could not be started has the beginning of the epoch.
    """
    try:
        return (datetime.fromisoformat(str(stamp)).timestamp() if stamp else None) or None
    except ValueError:
        return None
