"""Finding jobs on Batch, by id, by name and all of them, and reading their descriptions.

Batch lists the jobs of one queue, without their tags. So a list of all jobs takes a call for each page of
each queue, and one for each hundred jobs, whose tags tell which are ours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from shunter.parallel import for_all
from shunter.schedulers.api import DescribeAppResponse, ListAppResponse
from shunter.schedulers.aws import aws_names, batch_jobs
from shunter.schedulers.aws.batch_jobs import KnownJobs, find_by_name, seconds_of
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_batch_scheduler.reasons import exit_code, reason_of
from shunter.schedulers.aws_batch_scheduler.replicas import (
    ARRAY,
    CONTAINER,
    MULTINODE,
    RANK0_HOST,
    REPLICA_INDEX,
    ROLE_NAME,
    original_command,
)
from shunter.schedulers.aws_batch_scheduler.rules import node_range
from shunter.specs.app import Role
from shunter.specs.named_resources_aws import INSTANCE_TYPE
from shunter.specs.resources import Resource
from shunter.specs.status import AppState, EarlierAttempt, ReplicaStatus, by_role, is_terminal
from shunter.specs.training import output_in

#: How many jobs one call describes.
BATCH_SIZE = 100
DEFAULT_LOG_GROUP = "/aws/batch/job"
#: The role of jobs that do not name their roles.
UNNAMED_ROLE = "node"


class ReplicaRef(NamedTuple):
    """A replica: its role and index, and the id under which Batch describes it."""

    role: str
    replica: int
    job_id: str
    container: Mapping[str, Any]


def describe_jobs(session: AwsSession, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Describe jobs by id, a hundred per call and several calls in parallel; unknown ones are left out."""
    wanted = list(dict.fromkeys(ids))
    chunks = [wanted[start : start + BATCH_SIZE] for start in range(0, len(wanted), BATCH_SIZE)]

    def describe(chunk: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = session.call("batch", "DescribeJobs", jobs=chunk).get("jobs", [])
        return found

    return {job["jobId"]: job for page in for_all(describe, chunks) for job in page}


def kind_of(job: Mapping[str, Any]) -> str:
    """Return the kind of a described or listed job: container, array or multinode."""
    if "numNodes" in (job.get("nodeProperties") or {}):
        return MULTINODE
    return ARRAY if (job.get("arrayProperties") or {}).get("size") else CONTAINER


def replicas_of(job: Mapping[str, Any]) -> list[ReplicaRef]:
    """Return a job's replicas in order of their roles. Works for TorchX's jobs too."""
    job_id, kind = job["jobId"], kind_of(job)
    if kind == MULTINODE:
        return _nodes(job_id, job["nodeProperties"])
    container = job.get("container") or {}
    role = environment(container).get(ROLE_NAME, UNNAMED_ROLE)
    if kind == ARRAY:
        count = job["arrayProperties"]["size"]
        return [ReplicaRef(role, index, f"{job_id}:{index}", container) for index in range(count)]
    return [ReplicaRef(role, 0, job_id, container)]


def _nodes(job_id: str, properties: Mapping[str, Any]) -> list[ReplicaRef]:
    places: list[ReplicaRef] = []
    seen: Counter[str] = Counter()
    count = properties["numNodes"]
    for each in properties.get("nodeRangeProperties") or []:
        container = each.get("container") or {}
        role = environment(container).get(ROLE_NAME, UNNAMED_ROLE)
        for node in range(*node_range(each["targetNodes"], count)):
            places.append(ReplicaRef(role, seen[role], f"{job_id}#{node}", container))
            seen[role] += 1
    return places


def describe_replicas(session: AwsSession, job: Mapping[str, Any]) -> list[tuple[ReplicaRef, dict[str, Any]]]:
    """Return all replicas of a job, each with its description."""
    return details_of(session, job, replicas_of(job))


def details_of(
    session: AwsSession, job: Mapping[str, Any], places: Iterable[ReplicaRef]
) -> list[tuple[ReplicaRef, dict[str, Any]]]:
    """Return replicas of a job, each with its description, or else the job's."""
    wanted = list(places)
    if kind_of(job) == CONTAINER:
        return [(place, dict(job)) for place in wanted]
    found = describe_jobs(session, [place.job_id for place in wanted])
    return [(place, found.get(place.job_id) or _unseen(job, place)) for place in wanted]


def _unseen(job: Mapping[str, Any], place: ReplicaRef) -> dict[str, Any]:
    """Return a description, made from the job's, of a replica that Batch does not describe."""
    taken = ["status", "statusReason", "isCancelled", "isTerminated", "startedAt", "stoppedAt"]
    if place.job_id.endswith("#0"):
        taken += ["container", "attempts"]
    found = {key: job[key] for key in taken if key in job}
    if kind_of(job) == ARRAY and not is_terminal(reason_of(found).state):
        found["status"] = "PENDING"
    return found


def app_response(
    app_id: str, job: Mapping[str, Any], replicas: list[tuple[ReplicaRef, dict[str, Any]]] | None = None
) -> DescribeAppResponse:
    """Return what is known of a job, and of its replicas, if these are given with their descriptions."""
    state, msg = app_state(job)
    statuses = by_role(_replica_status(place, detail) for place, detail in replicas or [])
    if replicas and len(replicas) > 1:
        if state is AppState.FAILED:
            msg = _first_failure(replicas) or msg
        elif state is AppState.SUCCEEDED and (failure := _first_failure(replicas)):
            msg = f"its first replica succeeded, but {failure}"
    attempts = starts_of(job)
    tries = [job, *(job.get("attempts") or [])]
    return DescribeAppResponse(
        app_id,
        state,
        num_restarts=max(attempts - 1, 0),
        msg=msg,
        ui_url=console_url(job.get("jobArn", ""), kind_of(job)),
        metadata=dict(job.get("tags") or {}),
        roles_statuses=statuses,
        roles=_roles(job),
        results=_results(job),
        started_at=min(filter(None, (seconds_of(each.get("startedAt")) for each in tries)), default=None),
        ended_at=seconds_of(job.get("stoppedAt")),
    )


def console_url(arn: str, kind: str) -> str | None:
    """Return where a browser shows a job of this kind."""
    page = {ARRAY: "array-job", MULTINODE: "mnp-job"}.get(kind, "detail")
    return aws_names.console_link(arn, "batch/home", f"jobs/{page}/")


def _results(job: Mapping[str, Any]) -> str | None:
    """Return where the results of the first replica's script go."""
    groups = (job.get("nodeProperties") or {}).get("nodeRangeProperties") or [job]
    return output_in(environment(groups[0].get("container") or {})) or None


def app_state(job: Mapping[str, Any]) -> tuple[AppState, str]:
    """Return a job's state and the reason.

    The parent of an array job is PENDING until all its children have ended, so the children are counted.
    """
    reason = reason_of(dict(job))
    if kind_of(job) != ARRAY or is_terminal(reason.state):
        return reason.state, reason.text
    array = job["arrayProperties"]
    counts = {key: count for key, count in (array.get("statusSummary") or {}).items() if count}
    words = ", ".join(f"{count} {key}" for key, count in counts.items())
    failed = counts.get("FAILED", 0)
    ended = counts.get("SUCCEEDED", 0) + failed
    if ended == array["size"]:
        return (
            (AppState.FAILED, f"{failed} of {ended} replicas failed") if failed else (AppState.SUCCEEDED, "")
        )
    if counts.get("RUNNING") or ended:
        return AppState.RUNNING, words
    return reason.state, words or reason.text


def _first_failure(replicas: list[tuple[ReplicaRef, dict[str, Any]]]) -> str:
    failed = [
        (detail.get("stoppedAt") or 0, place, reason)
        for place, detail in replicas
        if (reason := reason_of(detail)).state is AppState.FAILED
    ]
    if not failed:
        return ""
    _, place, reason = min(failed, key=lambda each: each[0])
    others = f" ({len(failed)} of {len(replicas)} replicas failed)" if len(failed) > 1 else ""
    return f"{place.role}/{place.replica}: {reason.text}{others}"


def _replica_status(place: ReplicaRef, detail: dict[str, Any]) -> ReplicaStatus:
    reason = reason_of(detail)
    ended = is_terminal(reason.state)
    return ReplicaStatus(
        place.replica,
        reason.state,
        place.role,
        _host(detail),
        exit_code=exit_code(detail) if ended else None,
        reason=reason.text,
        restarts=max(starts_of(detail) - 1, 0),
        started_at=seconds_of(detail.get("startedAt")),
        ended_at=seconds_of(detail.get("stoppedAt")) if ended else None,
        earlier=_earlier(detail),
    )


def _earlier(detail: Mapping[str, Any]) -> list[EarlierAttempt]:
    """Return the attempts before the last one, as `DescribeJobs` has them (AttemptDetail)."""
    attempts = (detail.get("attempts") or [])[: max(starts_of(detail) - 1, 0)]
    found = []
    for number, attempt in enumerate(attempts):
        container = attempt.get("container") or {}
        reason = container.get("reason") or attempt.get("statusReason") or ""
        started, stopped = seconds_of(attempt.get("startedAt")), seconds_of(attempt.get("stoppedAt"))
        found.append(EarlierAttempt(number, started, stopped, container.get("exitCode"), reason))
    return found


def starts_of(detail: Mapping[str, Any]) -> int:
    """Return the number of attempts that began."""
    attempts = detail.get("attempts") or []
    is_new = detail.get("status") == "RUNNING" and all(attempt.get("stoppedAt") for attempt in attempts)
    return len(attempts) + is_new


def log_group(place: ReplicaRef) -> str:
    """Return the log group that a replica writes to."""
    options = (place.container.get("logConfiguration") or {}).get("options") or {}
    return str(options.get("awslogs-group", DEFAULT_LOG_GROUP))


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Return a container's variables as a dict."""
    return {pair["name"]: pair.get("value", "") for pair in container.get("environment") or []}


def _host(detail: Mapping[str, Any]) -> str:
    for interface in (detail.get("container") or {}).get("networkInterfaces") or []:
        if interface.get("privateIpv4Address"):
            return str(interface["privateIpv4Address"])
    return ""


def _roles(job: Mapping[str, Any]) -> list[Role]:
    """Rebuild the roles as far as Batch keeps them: without mounts, devices and retry policies."""
    roles: dict[str, Role] = {}
    for place in replicas_of(job):
        if place.role in roles:
            roles[place.role].num_replicas += 1
        elif place.container.get("command"):
            roles[place.role] = _role(place)
    return list(roles.values())


def _role(place: ReplicaRef) -> Role:
    container = place.container
    command = original_command(list(container["command"]))
    hidden = (REPLICA_INDEX, RANK0_HOST, "AWS_BATCH_JOB_ID")
    env = {key: value for key, value in environment(container).items() if key not in hidden}
    return Role(
        place.role,
        container.get("image", ""),
        entrypoint=command[0],
        args=command[1:],
        env=env,
        resource=_resource(container),
    )


def needs_of(container: Mapping[str, Any]) -> dict[str, int]:
    """Return what a container needs, rounded up: ``VCPU``, ``MEMORY`` in MiB, ``GPU``."""
    found = container.get("resourceRequirements") or ()
    return {each["type"]: math.ceil(float(each["value"])) for each in found}


def _resource(container: Mapping[str, Any]) -> Resource:
    needs = needs_of(container)
    resource = Resource(
        cpu=needs.get("VCPU", container.get("vcpus", -1)),
        gpu=needs.get("GPU", 0),
        memMB=needs.get("MEMORY", container.get("memory", -1)),
    )
    if container.get("instanceType"):
        resource.capabilities[INSTANCE_TYPE] = container["instanceType"]
    return resource


# ---- finding

Job = dict[str, Any]


def find(known: KnownJobs, app_ids: Iterable[str]) -> dict[str, Job | None]:
    """Find jobs by their known ids, with a call for each hundred, and the others by name.

    Jobs that do not exist or were deleted are None.
    """
    found: dict[str, Job | None] = dict.fromkeys(app_ids)
    groups: dict[tuple[str, str], dict[str, str]] = {}
    for app_id in found:
        if (ref := known.ref(app_id)).job_id:
            groups.setdefault((ref.region, ref.profile), {})[ref.job_id] = app_id
    for place, ids in groups.items():
        described = describe_jobs(known.session(*place), ids)
        found |= {ids[job_id]: job for job_id, job in described.items()}
    for app_id, job in found.items():
        if job is None and not known.is_new(app_id):
            job = found[app_id] = _find_by_name(known, app_id)
        if job is not None:
            known.shown(app_id)
            if aws_names.TAG_DELETED in (job.get("tags") or {}):
                found[app_id] = None
    return found


def _find_by_name(known: KnownJobs, app_id: str) -> Job | None:
    parts, session = aws_names.split_app_id(app_id), known.session_of(app_id)
    summaries = find_by_name(session, "ListJobs", *parts) if parts else []
    if not summaries:
        return None
    job_id = summaries[0]["jobId"]
    job = describe_jobs(session, [job_id]).get(job_id)
    if job is not None:
        known.remember(app_id, known.ref(app_id)._replace(job_id=job_id, arn=job.get("jobArn") or job_id))
    return job


def queue_names(session: AwsSession) -> list[str]:
    """Return all job queues."""
    pages = session.pages("batch", "DescribeJobQueues", "jobQueues")
    return list(dict.fromkeys(queue["jobQueueName"] for page in pages for queue in page))


def list_jobs(
    session: AwsSession,
    queue: str | None = None,
    states: Iterable[AppState] | None = None,
    since: float | None = None,
    everything: bool = False,
) -> list[ListAppResponse]:
    """Return the jobs of one queue or all, the oldest first.

    Args:
        session: the account's session.
        queue: name or ARN of a queue; None for all queues.
        states: only jobs in these states; None for all.
        since: only jobs created at or after this time, seconds since the epoch.
        everything: also jobs that neither we nor TorchX submitted.
    """
    queues = [queue] if queue is not None else queue_names(session)
    found = batch_jobs.list_jobs(session, "ListJobs", queues, since)
    if not everything:
        details = describe_jobs(session, (job["jobId"] for _, job in found))
        found = [
            (name, job | details[job["jobId"]])
            for name, job in found
            if aws_names.is_ours(details.get(job["jobId"], {}).get("tags") or {})
        ]
    rows = [_row(aws_names.queue_name(name), job) for name, job in found]
    wanted = frozenset(AppState if states is None else states)
    return sorted((row for row in rows if row.state in wanted), key=lambda row: row.submitted_at or 0.0)


def _row(queue: str, job: dict[str, Any]) -> ListAppResponse:
    state, _ = app_state(job)
    tags = job.get("tags") or {}
    name = tags.get(aws_names.TAG_APP_NAME) or tags.get(aws_names.TAG_PREDECESSOR_APP_NAME) or job["jobName"]
    row = ListAppResponse(aws_names.make_app_id(queue, job["jobName"]), state, name=name)
    row.submitted_at = seconds_of(job.get("createdAt"))
    row.started_at = seconds_of(job.get("startedAt"))
    row.ended_at = seconds_of(job.get("stoppedAt"))
    return row
