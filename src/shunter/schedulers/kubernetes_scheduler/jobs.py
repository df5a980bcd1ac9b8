"""Finding jobs on a cluster, and describing them and their replicas.

All requested jobs of a namespace are found by listing Jobs with a selector, a hundred names per call; JobSets
and Volcano jobs take one more call each, if any are wanted. A job that is not found does not count as ended:
its state is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shunter.schedulers.kubernetes_scheduler import names, states
from shunter.schedulers.kubernetes_scheduler.api_server import ApiServer, KubernetesError
from shunter.schedulers.kubernetes_scheduler.failure_policy import verdict
from shunter.schedulers.kubernetes_scheduler.names import inner, seconds
from shunter.schedulers.kubernetes_scheduler.options import JOB, JOBSET, VOLCANO
from shunter.schedulers.kubernetes_scheduler.pods import original_text
from shunter.schedulers.kubernetes_scheduler.rules import job_specs, pod_templates
from shunter.schedulers.kubernetes_scheduler.states import KubeReason
from shunter.schedulers.responses import DescribeAppResponse, ListAppResponse
from shunter.specs.app import Role
from shunter.specs.named_resources_aws import INSTANCE_TYPE
from shunter.specs.resources import Resource
from shunter.specs.status import NONE, AppState, EarlierAttempt, ReplicaStatus, RoleStatus, is_terminal
from shunter.specs.training import output_in

#: How many names a selector holds.
NAMES_PER_CALL = 100

API_OF_KIND = {JOB: "batch/v1", JOBSET: "jobset.x-k8s.io/v1alpha2", VOLCANO: "batch.volcano.sh/v1alpha1"}
GROUP_OF_KIND = {kind: api.partition("/")[0] for kind, api in API_OF_KIND.items()}
KUEUE = "kueue.x-k8s.io"
VISIBILITY = "visibility.kueue.x-k8s.io"


def list_path(kind: str, namespace: str) -> str:
    """Return the path of the objects of a kind; of all namespaces without one."""
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{API_OF_KIND[kind]}{where}/{'jobsets' if kind == JOBSET else 'jobs'}"


def core_path(plural: str, namespace: str, *more: str) -> str:
    """Return the path of pods, events, secrets or services, or of one of them."""
    return "/".join((f"/api/v1/namespaces/{namespace}/{plural}", *more))


def selectors(job_names: Iterable[str]) -> list[str]:
    """Return selectors of everything that belongs to these jobs, each with as many names as fit."""
    ordered = sorted(job_names)
    chunks = [ordered[start : start + NAMES_PER_CALL] for start in range(0, len(ordered), NAMES_PER_CALL)]
    return [f"{names.LABEL_JOB} in ({','.join(chunk)})" for chunk in chunks]


@dataclass
class ClusterJob:
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
    def selector(self) -> str:
        """What selects everything that belongs to it."""
        return f"{names.LABEL_JOB}={self.name}"

    @property
    def notes(self) -> Mapping[str, str]:
        """Its annotations."""
        return names.annotations_of(self.objects[0])

    @cached_property
    def layout(self) -> list[tuple[str, int]]:
        """Its roles, each with the number of replicas."""
        try:
            return [(str(role), int(count)) for role, count in json.loads(self.notes[names.NOTE_LAYOUT])]
        except (KeyError, ValueError, TypeError):
            return [(names.name_of(each), inner(each, "spec", "completions") or 1) for each in self.objects]

    @cached_property
    def reason(self) -> KubeReason:
        """Why it is in its state, from its Jobs, JobSet or Volcano job alone."""
        return _reason(self)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return is_terminal(self.reason.state)

    def pods(self) -> list[dict[str, Any]]:
        """Ask for its pods."""
        return self.server.items(core_path("pods", self.namespace), labelSelector=self.selector)

    def again(self) -> ClusterJob | None:
        """Ask for it again; None if it is gone."""
        return find_jobs(self.server, self.namespace, {self.name: self.kind}).get(self.name)


# ---- finding


def find_jobs(server: ApiServer, namespace: str, kinds: Mapping[str, str]) -> dict[str, ClusterJob]:
    """Find jobs of one namespace; those that are not there are left out.

    Args:
        server: the API server.
        namespace: the namespace.
        kinds: names, each with the kind of the job, "" if unknown.
    """
    jobs: dict[str, ClusterJob] = {}
    for kind in API_OF_KIND:
        missing = [name for name, known in kinds.items() if known in (kind, "") and name not in jobs]
        if not missing or not (any(kinds[name] for name in missing) or _is_served(server, kind)):
            continue
        for selector in selectors(missing):
            jobs.update({job.name: job for job in _select(server, namespace, kind, selector)})
    return jobs


def list_jobs(server: ApiServer, namespace: str) -> list[ClusterJob]:
    """Return all of our jobs in a namespace, or in all of them if it is ""."""
    return [
        job
        for kind in API_OF_KIND
        if _is_served(server, kind)
        for job in _select(server, namespace, kind, names.LABEL_JOB)
    ]


def _is_served(server: ApiServer, kind: str) -> bool:
    return kind == JOB or GROUP_OF_KIND[kind] in server.groups()


def _select(server: ApiServer, namespace: str, kind: str, selector: str) -> Iterable[ClusterJob]:
    """Return the jobs of one kind that a selector finds."""
    try:
        items = server.items(list_path(kind, namespace), labelSelector=selector)
    except KubernetesError as error:
        if error.status == 404:  # the cluster does not have this kind any more
            return []
        raise
    jobs: dict[tuple[str, str], ClusterJob] = {}
    for item in items:
        labels = names.labels_of(item)
        if labels.get(names.LABEL_KIND, kind) == kind:  # otherwise it is a Job of a JobSet
            item.setdefault("apiVersion", API_OF_KIND[kind])  # items of lists lack them
            item.setdefault("kind", "JobSet" if kind == JOBSET else "Job")
            where, name = str(inner(item, "metadata", "namespace") or namespace), labels[names.LABEL_JOB]
            jobs.setdefault((where, name), ClusterJob(server, where, name, kind)).objects.append(item)
    for job in jobs.values():
        job.objects.sort(key=_role_index)
    return jobs.values()


def _role_index(item: Mapping[str, Any]) -> int:
    index = names.labels_of(inner(item, "spec", "template")).get(names.LABEL_ROLE_INDEX, "0")
    return int(index) if index.isdecimal() else 0


# ---- the job as a whole


def _reason(job: ClusterJob) -> KubeReason:
    reasons = [states.job_reason(each) for each in job.objects]
    roles = [role for role, _ in job.layout]
    open_ones = [reason for reason in reasons if not is_terminal(reason.state)]
    failed = next((reason for reason in reasons if reason.state is AppState.FAILED), None)
    if failed is not None and len(roles) > 1 and job.kind == JOB:
        role = roles[_role_index(job.objects[reasons.index(failed)])]
        failed = KubeReason(failed.code, f"{role}: {failed.text}")
    if open_ones:
        under_way = KubeReason(states.RUNNING) if len(open_ones) < len(reasons) else open_ones[0]
        reason = next((each for each in open_ones if each.state is AppState.RUNNING), under_way)
        return KubeReason(reason.code, f"{failed.text} (the other roles go on)") if failed else reason
    cancelled = next((reason for reason in reasons if reason.code == states.CANCELLED), None)
    missing = len(roles) - len(reasons) if job.kind == JOB else 0
    if missing > 0 and not failed and not cancelled:
        return KubeReason(
            states.UNKNOWN, f"{missing} of its {len(roles)} Jobs are gone, and how they ended is not known"
        )
    return failed or cancelled or reasons[0]


def brief(job: ClusterJob) -> DescribeAppResponse:
    """Describe a job without asking for its pods."""
    status = inner(job.objects[0], "status")
    roles = _roles(job)
    return DescribeAppResponse(
        job.app_id,
        job.reason.state,
        num_restarts=int(status.get("restarts") or status.get("retryCount") or 0),
        msg=job.reason.text or NONE,
        metadata=json.loads(job.notes.get(names.NOTE_METADATA, "{}")),
        roles=roles,
        results=next(filter(None, (output_in(role.env) for role in roles)), None),
        ended_at=_ended_at(job),
    )


def row(job: ClusterJob) -> ListAppResponse:
    """Return a job's row in a list."""
    name = names.labels_of(job.objects[0]).get(names.LABEL_APP_NAME, "")
    response = ListAppResponse(job.app_id, job.reason.state, name=name)
    response.submitted_at = seconds(inner(job.objects[0], "metadata").get("creationTimestamp"))
    response.ended_at = _ended_at(job)
    return response


_LAST_CONDITIONS = ("Complete", "Completed", "Failed", "Suspended")  # a cancelled job is suspended


def _ended_at(job: ClusterJob) -> float | None:
    """Return when the last of its objects got into its last state; None if it has not ended."""
    if not job.has_ended:
        return None
    times = [inner(item, "status", "state").get("lastTransitionTime") for item in job.objects]  # Volcano's
    for item in job.objects:
        conditions = states.true_conditions(item).items()
        times += [each.get("lastTransitionTime") for kind, each in conditions if kind in _LAST_CONDITIONS]
    return max(filter(None, map(seconds, times)), default=None)


def _roles(job: ClusterJob) -> list[Role]:
    """Rebuild the roles as far as the cluster keeps them: without mounts and retry policies."""
    roles: dict[str, Role] = {}
    for template in (template for item in job.objects for _, template in pod_templates(item)):
        index = names.labels_of(template).get(names.LABEL_ROLE_INDEX, "0")
        containers = inner(template, "spec", "containers")
        if not containers or not index.isdecimal() or int(index) >= len(job.layout):
            continue
        name, count = job.layout[int(index)]
        main = containers[0]
        limits = inner(main, "resources", "limits")
        resource = Resource(
            cpu=int(quantity(limits.get("cpu", -1))),
            gpu=sum(int(quantity(amount)) for key, amount in limits.items() if key.endswith("/gpu")),
            memMB=int(quantity(limits["memory"])) >> 20 if "memory" in limits else -1,
        )
        if instance_type := inner(template, "spec", "nodeSelector").get(INSTANCE_TYPE):
            resource.capabilities[INSTANCE_TYPE] = instance_type
        roles[name] = Role(
            name,
            str(main.get("image", "")),
            entrypoint=original_text((main.get("command") or [""])[0]),
            args=[original_text(arg) for arg in main.get("args") or []],
            env={
                each["name"]: original_text(each.get("value", ""))
                for each in main.get("env") or []
                if "valueFrom" not in each
            },
            num_replicas=count,
            resource=resource,
        )
    return list(roles.values())


_SUFFIXES: dict[str, float] = {f"{letter}i": 1 << 10 * power for power, letter in enumerate("KMGTPE", 1)}
_SUFFIXES |= {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def quantity(amount: Any) -> float:
    """Return a quantity as a number; the API server writes ``1000m`` as ``1`` and ``1024Mi`` as ``1Gi``.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    text = str(amount)
    for suffix, factor in _SUFFIXES.items():
        if text.endswith(suffix):
            return float(text.removesuffix(suffix)) * factor
    return float(text)


# ---- the replicas

_GONE = "its pod is gone, and with it the reason for its failure"
#: Exit codes of a program that SIGTERM or SIGKILL has ended.
_STOPPED = (143, 137)


def describe(job: ClusterJob) -> DescribeAppResponse:
    """Describe a job with its replicas: a call for its pods, and a few for what keeps it waiting."""
    response, reason = brief(job), job.reason
    attempts = group_pods(job.pods())
    reasons = _pod_reasons(job, attempts)
    response.roles_statuses = [
        RoleStatus(
            role,
            [
                _replica(job, role, (index, k), attempts.get((index, k)), reasons.get((index, k)))
                for k in range(count)
            ],
        )
        for index, (role, count) in enumerate(job.layout)
    ]
    replicas = [replica for role in response.roles_statuses for replica in role.replicas]
    if reason.code == states.SUSPENDED:
        response.msg = _why_suspended(job)
    elif not is_terminal(reason.state) and any(each.state is AppState.RUNNING for each in replicas):
        response.state = AppState.RUNNING
        if reason.code == states.WAITING:  # the Job's own status lags behind
            response.msg = NONE
    elif reason.code == states.WAITING:
        # what keeps one of them waiting rather than that others start
        waiting = sorted(reasons.values(), key=lambda each: each.code == states.WAITING)
        texts = [each.text for each in waiting if each.text]
        response.msg = (texts[0] if texts else "" if attempts else _why_no_pods(job)) or response.msg
    failed = [replica for replica in replicas if replica.state is AppState.FAILED]
    if response.state is AppState.FAILED and failed:
        first = min(failed, key=lambda replica: replica.ended_at or float("inf"))
        if first.reason != _GONE or not reason.text:  # otherwise the Job's own words say more
            response.msg = f"{first.role}/{first.id}: {first.reason}"
            response.msg += f" ({len(failed)} of {len(replicas)} replicas failed)" if len(failed) > 1 else ""
            response.structured_error_msg = first.structured_error_msg
    return response


def group_pods(pods: Iterable[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Return the pods of each replica, the oldest first, by the index of the role and of the replica."""
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for pod in sorted(pods, key=_age):
        labels, notes = names.labels_of(pod), names.annotations_of(pod)
        role = labels.get(names.LABEL_ROLE_INDEX, "")
        index = labels.get(names.INDEX_LABEL) or notes.get(names.INDEX_LABEL) or ""
        index = labels.get(names.LABEL_REPLICA) or index
        if role.isdecimal() and index.isdecimal():
            groups.setdefault((int(role), int(index)), []).append(pod)
    return groups


def _age(pod: Mapping[str, Any]) -> tuple[str, bool, str, bool, str]:
    """Return the key that sorts pods by creation time, which the cluster keeps only to the second."""
    created = str(inner(pod, "metadata", "creationTimestamp") or "")
    ended = str(states.last_end(pod).get("finishedAt") or "")
    succeeded = inner(pod, "status", "phase") == "Succeeded"  # after which no other is made
    return created, not ended, ended, succeeded, names.name_of(pod)


def _pod_reasons(
    job: ClusterJob, attempts: Mapping[tuple[int, int], Sequence[dict[str, Any]]]
) -> dict[tuple[int, int], KubeReason]:
    """Return the reasons of the latest pods; the events of one that waits explain it, and others like it."""
    latest = {place: attempts[place][-1] for place in sorted(attempts)}
    waiting = (pod for pod in latest.values() if inner(pod, "status").get("phase") in ("Pending", None))
    first = next(waiting, None)
    events = _events(job, names.name_of(first)) if first is not None else []
    return {place: states.pod_reason(pod, events if pod is first else ()) for place, pod in latest.items()}


def _events(job: ClusterJob, name: str) -> list[dict[str, Any]]:
    """Return what happened to an object; nothing if it may not be read: it is no more than an explanation."""
    path = core_path("events", job.namespace)
    try:
        return job.server.items(path, fieldSelector=f"involvedObject.name={name}")
    except KubernetesError as error:
        if error.status in (403, 404):
            return []
        raise


def _why_no_pods(job: ClusterJob) -> str:
    """Return why a job has no pods, from events: quota, policies, ...; "" if unknown."""
    # a JobSet's pods are made by its Jobs
    made_by = [where for each in job.objects for where, _ in job_specs(each)]
    made_by = made_by or [names.name_of(each) for each in job.objects]
    events = [event for name in made_by for event in _events(job, name)]
    return states.cause_of(events, lambda reason: reason == "FailedCreate")


def _replica(
    job: ClusterJob,
    role: str,
    place: tuple[int, int],
    attempts: Sequence[dict[str, Any]] | None,
    reason: KubeReason | None,
) -> ReplicaStatus:
    app = job.reason
    if not attempts or reason is None:
        state, text = _without_pod(job, place)
        return ReplicaStatus(place[1], state, role, reason=text)
    pod = attempts[-1]
    end = states.last_end(pod)
    state, text = reason.state, reason.text
    if state is AppState.FAILED and not is_final(job, place):
        state, text = AppState.PENDING, f"{text}; it may be restarted" if text else "it may be restarted"
    elif app.code == states.CANCELLED and state is AppState.FAILED:
        state, text = AppState.CANCELLED, app.text
    elif app.code == states.TIMEOUT and reason.code == states.EXIT and end.get("exitCode") in _STOPPED:
        text = f"{app.text} ({text})"
    if state is AppState.FAILED:
        text = "; ".join(filter(None, [text, verdict(_object_of_role(job, place[0]))]))
    running = inner(states.container_status(pod), "state", "running")
    restarts = sum(states.container_status(each).get("restartCount") or 0 for each in attempts)
    return ReplicaStatus(
        place[1],
        state,
        role,
        str(inner(pod, "spec").get("nodeName") or ""),
        structured_error_msg=states.report_of(end),
        exit_code=end.get("exitCode"),
        reason=text,
        restarts=len(attempts) - 1 + restarts,
        started_at=seconds(end.get("startedAt") or running.get("startedAt")),
        ended_at=seconds(end.get("finishedAt")) if is_terminal(state) else None,
        earlier=[_earlier(number, each) for number, each in enumerate(attempts[:-1])],
    )


def _earlier(number: int, pod: Mapping[str, Any]) -> EarlierAttempt:
    """Return an attempt whose pod has another after it."""
    end = states.last_end(pod)
    start, stop = seconds(end.get("startedAt")), seconds(end.get("finishedAt"))
    return EarlierAttempt(number, start, stop, end.get("exitCode"), states.pod_reason(pod).text)


def _without_pod(job: ClusterJob, place: tuple[int, int]) -> tuple[AppState, str]:
    """Return the state of a replica that has no pod, from what its Job still knows of it."""
    index, k = place
    app = job.reason
    status = inner(_object_of_role(job, index), "status")
    if in_indexes(k, status.get("completedIndexes")) or app.state is AppState.SUCCEEDED:
        return AppState.SUCCEEDED, "its pod is gone"
    if in_indexes(k, status.get("failedIndexes")):
        return AppState.FAILED, _GONE
    if app.code == states.CANCELLED:
        return AppState.CANCELLED, app.text
    if app.state is AppState.FAILED:
        if job.layout[index][1] == 1 and (status.get("failed") or app.code == states.TIMEOUT):
            return AppState.FAILED, f"{app.text}; its pod is gone" if app.text else _GONE
        return AppState.CANCELLED, "it failed, or was stopped when the job failed: its pod is gone"
    return (AppState.SUSPENDED if app.code == states.SUSPENDED else AppState.PENDING), ""


def is_final(job: ClusterJob, place: tuple[int, int]) -> bool:
    """Tell whether a replica whose pod has failed will not get another one."""
    index, k = place
    item = _object_of_role(job, index)
    is_given_up = in_indexes(k, inner(item, "status").get("failedIndexes"))
    return job.has_ended or is_given_up or (bool(item) and is_terminal(states.job_reason(item).state))


def _object_of_role(job: ClusterJob, index: int) -> Mapping[str, Any]:
    """Return the Job of a role; empty if it is gone, or the job has no Job for each role."""
    return next((each for each in job.objects if job.kind == JOB and _role_index(each) == index), {})


def in_indexes(index: int, text: str | None) -> bool:
    """Tell whether an index is among those that a Job lists as ``1,3-5,7``."""
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and int(first) <= index <= int(last or first):
            return True
    return False


# ---- what a job waits for in Kueue


def _why_suspended(job: ClusterJob) -> str:
    """Return what a suspended job waits for: Kueue's own words, and its position in the queue."""
    queue = names.labels_of(job.objects[0]).get(names.QUEUE_LABEL)
    if not queue:
        return "somebody has to resume it (spec.suspend)"
    parts = [f"waiting in the queue {queue}"]
    try:
        queued = workloads(job)
        parts += [_position(job, queue, {names.name_of(each) for each in queued}), _admission(queued)]
    except KubernetesError:  # they are no more than an explanation
        pass
    return "; ".join(filter(None, parts))


def workloads_path(job: ClusterJob) -> str:
    """Return the path of Kueue's workloads, in the version that the cluster serves; "" without Kueue."""
    versions = job.server.groups().get(KUEUE)
    return f"/apis/{KUEUE}/{versions[0]}/namespaces/{job.namespace}/workloads" if versions else ""


def workloads(job: ClusterJob) -> list[dict[str, Any]]:
    """Return Kueue's workloads of a job."""
    path = workloads_path(job)
    uids = ",".join(str(each["metadata"].get("uid", "")) for each in job.objects)
    return job.server.items(path, labelSelector=f"kueue.x-k8s.io/job-uid in ({uids})") if path else []


def _admission(queued: Iterable[Mapping[str, Any]]) -> str:
    for workload in queued:
        conditions = {each.get("type"): each for each in inner(workload, "status", "conditions")}
        for kind, status in (("Evicted", "True"), ("QuotaReserved", "False"), ("Admitted", "False")):
            condition = conditions.get(kind) or {}
            if condition.get("status") == status and condition.get("message"):
                return " ".join(str(condition["message"]).split())
    return ""


def _position(job: ClusterJob, queue: str, ours: set[str]) -> str:
    """Return the position of a job in its queue, from Kueue's visibility API."""
    versions = job.server.groups().get(VISIBILITY)
    if not versions:
        return ""
    path = f"/apis/{VISIBILITY}/{versions[0]}/namespaces/{job.namespace}/localqueues/{queue}/pendingworkloads"
    pending = inner(job.server.find(path) or {}, "items")
    for each in pending:
        if names.name_of(each) in ours:
            place = int(each.get("positionInLocalQueue") or 0) + 1
            overall = int(each.get("positionInClusterQueue") or 0) + 1
            return f"position {place} of {len(pending)} (in the whole ClusterQueue {overall})"
    return ""
