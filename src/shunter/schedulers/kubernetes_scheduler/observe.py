"""Finding jobs on a cluster, and describing them and their replicas.

All requested jobs of a namespace are found by listing Jobs with a selector, a hundred names per call; JobSets
and Volcano jobs take one more call each, if any are wanted. A job that is not found does not count as ended:
its state is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.api_server import ApiServer, KubernetesError
from shunter.schedulers.kubernetes_scheduler.failure_policy import verdict
from shunter.schedulers.kubernetes_scheduler.options import JOB, JOBSET, VOLCANO
from shunter.schedulers.kubernetes_scheduler.pods import original_text
from shunter.schedulers.kubernetes_scheduler.reasons import (
    CANCELLED,
    EXIT,
    RUNNING,
    SUSPENDED,
    TIMEOUT,
    UNKNOWN,
    WAITING,
    KubeReason,
    container_status,
    event_time,
    is_only_waiting,
    job_reason,
    last_end,
    made_no_pods,
    pod_reason,
    report_of,
    seconds,
)
from shunter.schedulers.kubernetes_scheduler.rules import job_specs, pod_templates
from shunter.schedulers.responses import DescribeAppResponse, ListAppResponse
from shunter.specs.app import Role
from shunter.specs.named_resources_aws import INSTANCE_TYPE
from shunter.specs.resources import Resource
from shunter.specs.status import NONE, AppState, EarlierAttempt, ReplicaStatus, RoleStatus, is_terminal
from shunter.specs.training import output_in

#: How many names a selector holds.
NAMES_PER_CALL = 100

API_OF_KIND = {
    JOB: "/apis/batch/v1",
    JOBSET: "/apis/jobset.x-k8s.io/v1alpha2",
    VOLCANO: "/apis/batch.volcano.sh/v1alpha1",
}
PLURAL = {JOB: "jobs", JOBSET: "jobsets", VOLCANO: "jobs"}
GROUP_OF_KIND = {JOBSET: "jobset.x-k8s.io", VOLCANO: "batch.volcano.sh"}
KUEUE = "kueue.x-k8s.io"
VISIBILITY = "visibility.kueue.x-k8s.io"


def list_path(kind: str, namespace: str) -> str:
    """Return the path of the objects of a kind; of all namespaces without one."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{API_OF_KIND[kind]}{where}/{PLURAL[kind]}"


def core_path(plural: str, namespace: str, *more: str) -> str:
    """Return the path of pods, events, secrets or services, or of one of them."""
    return "/".join((f"/api/v1/namespaces/{namespace}/{plural}", *more))


def selector(job_names: Iterable[str]) -> str:
    """Return the selector of everything that belongs to these jobs."""
    wanted = sorted(job_names)
    if len(wanted) == 1:
        return f"{names.LABEL_JOB}={wanted[0]}"
    return f"{names.LABEL_JOB} in ({','.join(wanted)})"


@dataclass
class FoundJob:
    """A job that was found.

    Args:
        server: the API server that has it.
        namespace: its namespace.
        name: its name.
        kind: job, jobset or volcano.
        objects: its Jobs by role, or its JobSet or Volcano job.
    """

    server: ApiServer
    namespace: str
    name: str
    kind: str
    objects: list[dict[str, Any]] = field(default_factory=list)

    @property
    def app_id(self) -> str:
        """Its app id."""
        return names.make_app_id(self.namespace, self.name)

    @property
    def notes(self) -> Mapping[str, str]:
        """Its annotations."""
        return names.annotations_of(self.objects[0])

    @property
    def layout(self) -> list[tuple[str, int]]:
        """Its roles, each with the number of replicas."""
        try:
            return [(str(role), int(count)) for role, count in json.loads(self.notes[names.NOTE_LAYOUT])]
        except (KeyError, ValueError, TypeError):
            return [
                (names.name_of(each), (each.get("spec") or {}).get("completions") or 1)
                for each in self.objects
            ]

    def pods(self) -> list[dict[str, Any]]:
        """Ask for its pods."""
        path = core_path("pods", self.namespace)
        return self.server.items(path, labelSelector=selector([self.name]))[0]


# ---- finding


def find_jobs(server: ApiServer, namespace: str, wanted: Mapping[str, str]) -> dict[str, FoundJob]:
    """Find jobs of one namespace; those that are not there are left out.

    Args:
        server: the API server.
        namespace: the namespace.
        wanted: names, each with the kind of the job, "" if unknown.
    """
    found: dict[str, FoundJob] = {}
    elsewhere: dict[str, list[str]] = {JOBSET: [], VOLCANO: []}
    plain: list[str] = []
    for name, kind in wanted.items():
        elsewhere.get(kind, plain).append(name)
    seen = _collect(server, namespace, JOB, plain, found) if plain else {}
    for name in plain:
        if name not in found:
            kind = seen.get(name, "")
            for each in [kind] if kind in elsewhere else elsewhere:
                elsewhere[each].append(name)
    for kind, some in elsewhere.items():
        if some and (any(wanted[name] == kind for name in some) or GROUP_OF_KIND[kind] in server.groups()):
            _collect(server, namespace, kind, [name for name in some if name not in found], found)
    return found


def _collect(
    server: ApiServer, namespace: str, kind: str, wanted: list[str], found: dict[str, FoundJob]
) -> dict[str, str]:
    """Find jobs of one kind; returns the kind that each name turned out to have."""
    kinds: dict[str, str] = {}
    for start in range(0, len(wanted), NAMES_PER_CALL):
        chunk = wanted[start : start + NAMES_PER_CALL]
        try:
            items, _ = server.items(list_path(kind, namespace), labelSelector=selector(chunk))
        except KubernetesError as error:
            if error.status == 404:  # the cluster does not have this kind
                return kinds
            raise
        for item in items:
            _put(server, namespace, kind, item, found, kinds)
    return kinds


def _put(
    server: ApiServer,
    namespace: str,
    kind: str,
    item: dict[str, Any],
    found: dict[str, FoundJob],
    kinds: dict[str, str],
) -> None:
    labels = names.labels_of(item)
    name = labels.get(names.LABEL_JOB, "")
    kinds[name] = labels.get(names.LABEL_KIND, kind)
    if kinds[name] != kind:  # a Job of a JobSet
        return
    item.setdefault("apiVersion", API_OF_KIND[kind].removeprefix("/apis/"))  # items of lists lack them
    item.setdefault("kind", "JobSet" if kind == JOBSET else "Job")
    found.setdefault(name, FoundJob(server, namespace, name, kind)).objects.append(item)
    found[name].objects.sort(key=_role_index)


def _role_index(item: Mapping[str, Any]) -> int:
    template = (item.get("spec") or {}).get("template") or {}
    index = names.labels_of(template).get(names.LABEL_ROLE_INDEX, "0")
    return int(index) if index.isdecimal() else 0


def list_jobs(server: ApiServer, namespace: str) -> list[FoundJob]:
    """Return all of our jobs in a namespace, or in all of them if it is ""."""
    found: dict[tuple[str, str], dict[str, FoundJob]] = {}
    for kind in (JOB, JOBSET, VOLCANO):
        if kind in GROUP_OF_KIND and GROUP_OF_KIND[kind] not in server.groups():
            continue
        items, _ = server.items(list_path(kind, namespace), labelSelector=names.LABEL_JOB)
        for item in items:
            where = str((item.get("metadata") or {}).get("namespace") or namespace)
            _put(server, where, kind, item, found.setdefault((kind, where), {}), {})
    return [job for some in found.values() for job in some.values()]


# ---- states


def app_reason(job: FoundJob) -> KubeReason:
    """Return the reason of a job, from its Jobs, JobSet or Volcano job alone."""
    reasons = [job_reason(each) for each in job.objects]
    roles = [role for role, _ in job.layout]
    missing = len(roles) - len(reasons) if job.kind == JOB else 0
    open_ones = [reason for reason in reasons if not is_terminal(reason.state)]
    failures = [
        f"{roles[_role_index(each)]}: {reason.text}" if len(roles) > 1 else reason.text
        for each, reason in zip(job.objects, reasons, strict=True)
        if reason.state is AppState.FAILED
    ]
    if open_ones:
        under_way = KubeReason(RUNNING) if len(open_ones) < len(reasons) else open_ones[0]
        found = next((reason for reason in open_ones if reason.state is AppState.RUNNING), under_way)
        note = f"{failures[0]} (the other roles go on)" if failures else found.text
        return KubeReason(found.code, note)
    ended = next((reason for reason in reasons if reason.state is AppState.FAILED), None)
    if ended is not None:
        return KubeReason(ended.code, failures[0])
    ended = next((reason for reason in reasons if reason.code == CANCELLED), None)
    if ended is None and missing > 0:
        return KubeReason(
            UNKNOWN, f"{missing} of its {len(roles)} Jobs are gone, and how they ended is not known"
        )
    return ended or reasons[0]


def brief(job: FoundJob) -> DescribeAppResponse:
    """Describe a job without asking for its pods."""
    reason = app_reason(job)
    return DescribeAppResponse(
        job.app_id,
        reason.state,
        num_restarts=_restarts(job),
        msg=reason.text or NONE,
        metadata=_metadata(job),
        roles=_roles(job),
        results=_results(job),
        ended_at=_job_ended_at(job) if is_terminal(reason.state) else None,
    )


def _job_ended_at(job: FoundJob) -> float | None:
    return max(filter(None, map(_ended_at, job.objects)), default=None)


def describe(job: FoundJob) -> DescribeAppResponse:
    """Describe a job with its replicas: a call for its pods, and a few for what keeps it waiting."""
    response = brief(job)
    pods = job.pods()
    by_replica = group_pods(pods)
    reason = app_reason(job)
    events = _Events(job)
    statuses: list[RoleStatus] = []
    for index, (role, count) in enumerate(job.layout):
        replicas = [
            _replica(job, reason, role, index, k, by_replica.get((index, k), []), events)
            for k in range(count)
        ]
        statuses.append(RoleStatus(role, replicas))
    response.roles_statuses = statuses
    everyone = [replica for role in statuses for replica in role.replicas]
    if not is_terminal(reason.state) and reason.code != SUSPENDED:
        if any(replica.state is AppState.RUNNING for replica in everyone):
            response.state = AppState.RUNNING
            if reason.code == WAITING:  # the Job's own status lags behind
                response.msg = NONE
        elif reason.code == WAITING:
            said = [replica.reason for replica in everyone if replica.reason]
            said.sort(key=is_only_waiting)  # what keeps one of them waiting rather than that others start
            response.msg = (
                made_no_pods(events.of_jobs()) if not pods else next(iter(said), "")
            ) or response.msg
    elif reason.code == SUSPENDED:
        response.msg = why_suspended(job)
    if response.state is AppState.FAILED:
        failed = [replica for replica in everyone if replica.state is AppState.FAILED]
        failed.sort(key=lambda replica: replica.ended_at or float("inf"))
        if failed and not (failed[0].reason == _GONE and reason.text):  # the Job's own words say more
            response.msg = f"{failed[0].role}/{failed[0].id}: {failed[0].reason}"
            response.msg += f" ({len(failed)} of {len(everyone)} replicas failed)" if len(failed) > 1 else ""
            response.structured_error_msg = failed[0].structured_error_msg
    return response


class _Events:
    """The events of a job's objects, requested at most once for its Jobs and once for a waiting pod."""

    def __init__(self, job: FoundJob) -> None:
        self._job = job
        self._of_jobs: list[dict[str, Any]] | None = None
        self._of_pod: tuple[str, list[dict[str, Any]]] | None = None

    def of_jobs(self) -> list[dict[str, Any]]:
        """Return the events of the Jobs, the latest last."""
        if self._of_jobs is None:
            # a JobSet's pods are made by its Jobs
            made_by = [where for each in self._job.objects for where, _ in job_specs(each)]
            made_by = made_by or [names.name_of(each) for each in self._job.objects]
            self._of_jobs = [event for name in made_by for event in self._ask(name)]
        return self._of_jobs

    def of_pod(self, pod: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the events of the first pod asked about; none for the others: they wait for the same."""
        name = names.name_of(pod)
        if self._of_pod is None:
            self._of_pod = (name, self._ask(name))
        return self._of_pod[1] if self._of_pod[0] == name else []

    def _ask(self, name: str) -> list[dict[str, Any]]:
        try:
            found, _ = self._job.server.items(
                core_path("events", self._job.namespace), fieldSelector=f"involvedObject.name={name}"
            )
        except KubernetesError as error:
            if error.status in (403, 404):  # they are no more than an explanation
                return []
            raise
        return sorted(found, key=event_time)


def replica_of(pod: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the index of a pod's role and of its replica; None if it is not one of ours."""
    labels, notes = names.labels_of(pod), names.annotations_of(pod)
    role = labels.get(names.LABEL_ROLE_INDEX, "")
    index = (
        labels.get(names.LABEL_REPLICA) or labels.get(names.INDEX_LABEL) or notes.get(names.INDEX_LABEL) or ""
    )
    return (int(role), int(index)) if role.isdecimal() and index.isdecimal() else None


def group_pods(pods: Iterable[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Return the pods of each replica, the oldest first."""
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for pod in pods:
        place = replica_of(pod)
        if place is not None:
            groups.setdefault(place, []).append(pod)
    for group in groups.values():
        group.sort(key=_age)
    return groups


def _age(pod: Mapping[str, Any]) -> tuple[str, bool, str, bool, str]:
    """Return the key that sorts pods by creation time, which the cluster keeps only to the second."""
    created = str((pod.get("metadata") or {}).get("creationTimestamp") or "")
    ended = str(last_end(pod).get("finishedAt") or "")
    succeeded = (pod.get("status") or {}).get("phase") == "Succeeded"  # after which no other is made
    return created, not ended, ended, succeeded, names.name_of(pod)


def _replica(
    job: FoundJob,
    app: KubeReason,
    role: str,
    index: int,
    k: int,
    attempts: Sequence[dict[str, Any]],
    events: _Events,
) -> ReplicaStatus:
    if not attempts:
        state, text = _without_pod(job, app, index, k)
        return ReplicaStatus(k, state, role, reason=text)
    pod = attempts[-1]
    is_pending = (pod.get("status") or {}).get("phase") in ("Pending", None)
    reason = pod_reason(pod, events.of_pod(pod) if is_pending else ())
    end = last_end(pod)
    ended = is_terminal(reason.state)
    state, text = reason.state, reason.text
    if state is AppState.FAILED and not is_terminal(app.state):
        ended = is_final(job, index, k)
        if not ended:
            state, text = AppState.PENDING, f"{text}; it may be restarted" if text else "it may be restarted"
    elif app.code == CANCELLED and state is AppState.FAILED:
        state, text = AppState.CANCELLED, app.text
    elif app.code == TIMEOUT and reason.code == EXIT and end.get("exitCode") in _STOPPED:
        text = f"{app.text} ({text})"
    if ended and state is AppState.FAILED:
        text = "; ".join(filter(None, [text, verdict(_object_of_role(job, index) or {})]))
    running = (container_status(pod).get("state") or {}).get("running") or {}
    started = seconds(end.get("startedAt") or running.get("startedAt"))
    return ReplicaStatus(
        k,
        state,
        role,
        str((pod.get("spec") or {}).get("nodeName") or ""),
        structured_error_msg=report_of(end),
        exit_code=end.get("exitCode") if end else None,
        reason=text,
        restarts=len(attempts)
        - 1
        + sum(container_status(each).get("restartCount") or 0 for each in attempts),
        started_at=started,
        ended_at=seconds(end.get("finishedAt")) if ended else None,
        earlier=[_earlier(number, each) for number, each in enumerate(attempts[:-1])],
    )


def _earlier(number: int, pod: Mapping[str, Any]) -> EarlierAttempt:
    """Return an attempt whose pod has another after it."""
    end = last_end(pod)
    start, stop = seconds(end.get("startedAt")), seconds(end.get("finishedAt"))
    return EarlierAttempt(number, start, stop, end.get("exitCode"), pod_reason(pod, ()).text)


#: Exit codes of a program that SIGTERM or SIGKILL has ended.
_STOPPED = (143, 137)

_GONE = "its pod is gone, and with it the reason for its failure"


def _without_pod(job: FoundJob, app: KubeReason, index: int, k: int) -> tuple[AppState, str]:
    """Return the state of a replica that has no pod, from what its Job still knows of it."""
    status = (_object_of_role(job, index) or {}).get("status") or {}
    if in_indexes(k, status.get("completedIndexes")):
        return AppState.SUCCEEDED, "its pod is gone"
    if in_indexes(k, status.get("failedIndexes")):
        return AppState.FAILED, _GONE
    if app.state is AppState.SUCCEEDED:
        return AppState.SUCCEEDED, "its pod is gone"
    if app.code == CANCELLED:
        return AppState.CANCELLED, app.text
    if app.state is AppState.FAILED:
        if job.layout[index][1] == 1 and (status.get("failed") or app.code == TIMEOUT):
            return AppState.FAILED, f"{app.text}; its pod is gone" if app.text else _GONE
        return AppState.CANCELLED, "it failed, or was stopped when the job failed: its pod is gone"
    return (AppState.SUSPENDED, "") if app.code == SUSPENDED else (AppState.PENDING, "")


def is_final(job: FoundJob, index: int, k: int) -> bool:
    """Tell whether a replica whose pod has failed will not get another one."""
    item = _object_of_role(job, index)
    if item is None:
        return False
    return in_indexes(k, (item.get("status") or {}).get("failedIndexes")) or is_terminal(
        job_reason(item).state
    )


def _object_of_role(job: FoundJob, index: int) -> dict[str, Any] | None:
    if job.kind != JOB:
        return None
    return next((each for each in job.objects if _role_index(each) == index), None)


def in_indexes(index: int, text: str | None) -> bool:
    """Tell whether an index is among those that a Job lists as ``1,3-5,7``."""
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and int(first) <= index <= int(last or first):
            return True
    return False


def why_suspended(job: FoundJob) -> str:
    """Return what a suspended job waits for: Kueue's own words, and its position in the queue."""
    queue = names.labels_of(job.objects[0]).get(names.QUEUE_LABEL)
    if not queue:
        return "somebody has to resume it (spec.suspend)"
    try:
        text = _admission(job)
        position = _position(job, queue)
    except KubernetesError:  # they are no more than an explanation
        text = position = ""
    return "; ".join(part for part in (f"waiting in the queue {queue}", position, text) if part)


def workloads_path(job: FoundJob) -> str:
    """Return the path of Kueue's workloads, in the version that the cluster serves; "" without Kueue."""
    versions = job.server.groups().get(KUEUE) or []
    return f"/apis/{KUEUE}/{versions[0]}/namespaces/{job.namespace}/workloads" if versions else ""


def workloads(job: FoundJob) -> list[dict[str, Any]]:
    """Return Kueue's workloads of a job."""
    path = workloads_path(job)
    if not path:
        return []
    uids = ",".join(str(each["metadata"].get("uid", "")) for each in job.objects)
    return job.server.items(path, labelSelector=f"kueue.x-k8s.io/job-uid in ({uids})")[0]


def _admission(job: FoundJob) -> str:
    for workload in workloads(job):
        conditions = {
            each.get("type"): each for each in (workload.get("status") or {}).get("conditions") or []
        }
        for kind, wanted in (("Evicted", "True"), ("QuotaReserved", "False"), ("Admitted", "False")):
            found = conditions.get(kind) or {}
            if found.get("status") == wanted and found.get("message"):
                return " ".join(str(found["message"]).split())
    return ""


def _position(job: FoundJob, queue: str) -> str:
    """Return the position of a job in its queue, from Kueue's visibility API."""
    versions = job.server.groups().get(VISIBILITY) or []
    if not versions:
        return ""
    path = f"/apis/{VISIBILITY}/{versions[0]}/namespaces/{job.namespace}/localqueues/{queue}/pendingworkloads"
    pending = (job.server.find(path) or {}).get("items") or []
    ours = {names.name_of(each) for each in workloads(job)}
    for each in pending:
        if names.name_of(each) in ours:
            place = int(each.get("positionInLocalQueue") or 0) + 1
            overall = int(each.get("positionInClusterQueue") or 0) + 1
            return f"position {place} of {len(pending)} (in the whole ClusterQueue {overall})"
    return ""


# ---- the rest of a description


def _restarts(job: FoundJob) -> int:
    status = job.objects[0].get("status") or {}
    if job.kind == JOBSET:
        return int(status.get("restarts") or 0)
    return int(status.get("retryCount") or 0) if job.kind == VOLCANO else 0


def _metadata(job: FoundJob) -> dict[str, str]:
    try:
        found = json.loads(job.notes.get(names.NOTE_METADATA, "{}"))
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, AttributeError):
        return {}


def _templates(job: FoundJob) -> dict[int, tuple[Mapping[str, Any], int]]:
    """Return the pod template of each role, with the number of its replicas."""
    counts = [count for _, count in job.layout]
    found: dict[int, tuple[Mapping[str, Any], int]] = {}
    for item in job.objects:
        for _, template in pod_templates(item):
            index = names.labels_of(template).get(names.LABEL_ROLE_INDEX, "0")
            number = int(index) if index.isdecimal() else 0
            found.setdefault(number, (template, counts[number] if number < len(counts) else 1))
    return found


def environment(template: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a template's program that have values there."""
    containers = (template.get("spec") or {}).get("containers") or [{}]
    return {
        each["name"]: each.get("value", "")
        for each in containers[0].get("env") or []
        if "valueFrom" not in each
    }


def _roles(job: FoundJob) -> list[Role]:
    """Rebuild the roles as far as the cluster keeps them: without mounts and retry policies."""
    roles = []
    layout = job.layout
    for index, (template, count) in sorted(_templates(job).items()):
        containers = (template.get("spec") or {}).get("containers") or []
        if not containers or index >= len(layout):
            continue
        main = containers[0]
        limits = (main.get("resources") or {}).get("limits") or {}
        resource = Resource(
            cpu=int(quantity(limits.get("cpu", -1))),
            gpu=sum(int(quantity(amount)) for key, amount in limits.items() if key.endswith("/gpu")),
            memMB=int(quantity(limits["memory"])) >> 20 if "memory" in limits else -1,
        )
        selector_ = (template.get("spec") or {}).get("nodeSelector") or {}
        if selector_.get(INSTANCE_TYPE):
            resource.capabilities[INSTANCE_TYPE] = selector_[INSTANCE_TYPE]
        roles.append(
            Role(
                layout[index][0],
                str(main.get("image", "")),
                entrypoint=original_text((main.get("command") or [""])[0]),
                args=[original_text(arg) for arg in main.get("args") or []],
                env={name: original_text(value) for name, value in environment(template).items()},
                num_replicas=count,
                resource=resource,
            )
        )
    return roles


_BINARY = {f"{letter}i": 1 << 10 * power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def quantity(amount: Any) -> float:
    """Return a quantity as a number; the API server writes ``1000m`` as ``1`` and ``1024Mi`` as ``1Gi``.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    text = str(amount)
    for suffix, factor in (*_BINARY.items(), *_DECIMAL.items()):
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


def _results(job: FoundJob) -> str | None:
    for template, _ in _templates(job).values():
        found = output_in(environment(template))
        if found:
            return found
    return None


def row(job: FoundJob) -> ListAppResponse:
    """Return a job's row in a list."""
    metadata = job.objects[0].get("metadata") or {}
    reason = app_reason(job)
    found = ListAppResponse(
        job.app_id, reason.state, name=names.labels_of(job.objects[0]).get(names.LABEL_APP_NAME, "")
    )
    found.submitted_at = seconds(metadata.get("creationTimestamp"))
    if is_terminal(reason.state):
        found.ended_at = _job_ended_at(job)
    return found


_LAST_CONDITIONS = ("Complete", "Completed", "Failed", "Suspended")  # a cancelled job is suspended


def _ended_at(item: Mapping[str, Any]) -> float | None:
    """Return when the Job, JobSet or Volcano job got into its last state."""
    status = item.get("status") or {}
    last = {
        each.get("type"): each.get("lastTransitionTime")
        for each in status.get("conditions") or []
        if each.get("status") == "True"
    }
    times = [
        status.get("completionTime"),
        *(last.get(kind) for kind in _LAST_CONDITIONS),
        (status.get("state") or {}).get("lastTransitionTime"),
    ]
    return next((seconds(time) for time in times if time), None)
