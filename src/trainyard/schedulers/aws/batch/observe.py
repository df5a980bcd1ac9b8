"""What Batch says of a job, as states of a job and its replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from trainyard.schedulers.aws.batch import names
from trainyard.schedulers.aws.batch.commands import RANK0_HOST, REPLICA_INDEX, ROLE_NAME, original_command
from trainyard.schedulers.aws.batch.reasons import exit_code, reason_of
from trainyard.schedulers.aws.batch.rules import node_range
from trainyard.schedulers.aws.batch.shapes import ARRAY, CONTAINER, MULTINODE
from trainyard.schedulers.aws.session import AwsSession
from trainyard.schedulers.base import DescribeAppResponse
from trainyard.specs.app import Role
from trainyard.specs.named_resources_aws import INSTANCE_TYPE
from trainyard.specs.resources import Resource
from trainyard.specs.status import AppState, ReplicaStatus, RoleStatus, is_terminal
from trainyard.specs.training import output_in

#: How many jobs one call describes, and how many calls are under way at a time.
BATCH_SIZE = 100
CONCURRENCY = 8
#: The role of jobs that do not say their roles.
UNNAMED_ROLE = "node"


class Place(NamedTuple):
    """Where a replica is: its role and index, and the id under which Batch describes it alone."""

    role: str
    replica: int
    job_id: str
    container: Mapping[str, Any]


def describe_jobs(
    session: AwsSession,
    ids: Iterable[str],
    keep: Callable[[dict[str, Any]], dict[str, Any]] = lambda job: job,
) -> dict[str, dict[str, Any]]:
    """Describe jobs by id, a hundred at a time and several calls at once; unknown ones are left out.

    Args:
        session: where the jobs are.
        ids: their ids.
        keep: what to keep of each, where they are many; it must leave the id.
    """
    wanted = list(dict.fromkeys(ids))
    chunks = [wanted[start : start + BATCH_SIZE] for start in range(0, len(wanted), BATCH_SIZE)]

    def describe(chunk: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = session.call("batch", "DescribeJobs", jobs=chunk).get("jobs", [])
        return [keep(job) for job in found]

    if len(chunks) <= 1:
        pages = [describe(chunk) for chunk in chunks]
    else:
        with ThreadPoolExecutor(CONCURRENCY, "describe-jobs") as pool:
            pages = list(pool.map(describe, chunks))
    return {job["jobId"]: job for page in pages for job in page}


def kind_of(job: Mapping[str, Any]) -> str:
    """Return the kind of a job, as described or as listed: container, array or multinode."""
    if "numNodes" in (job.get("nodeProperties") or {}):
        return MULTINODE
    return ARRAY if (job.get("arrayProperties") or {}).get("size") else CONTAINER


def places_of(job: Mapping[str, Any]) -> list[Place]:
    """Return a job's replicas in order of their roles. Works for the predecessor's jobs too."""
    job_id, kind = job["jobId"], kind_of(job)
    if kind == MULTINODE:
        return _nodes(job_id, job["nodeProperties"])
    container = job.get("container") or {}
    role = environment(container).get(ROLE_NAME, UNNAMED_ROLE)
    if kind == ARRAY:
        count = job["arrayProperties"]["size"]
        return [Place(role, index, f"{job_id}:{index}", container) for index in range(count)]
    return [Place(role, 0, job_id, container)]


def _nodes(job_id: str, properties: Mapping[str, Any]) -> list[Place]:
    places: list[Place] = []
    seen: dict[str, int] = {}
    count = properties["numNodes"]
    for each in properties.get("nodeRangeProperties") or []:
        container = each.get("container") or {}
        role = environment(container).get(ROLE_NAME, UNNAMED_ROLE)
        for node in range(*node_range(each["targetNodes"], count)):
            places.append(Place(role, seen.get(role, 0), f"{job_id}#{node}", container))
            seen[role] = seen.get(role, 0) + 1
    return places


def describe_replicas(session: AwsSession, job: Mapping[str, Any]) -> list[tuple[Place, dict[str, Any]]]:
    """Return all replicas of a job, and what Batch says of each."""
    return details_of(session, job, places_of(job))


def details_of(
    session: AwsSession, job: Mapping[str, Any], places: Iterable[Place]
) -> list[tuple[Place, dict[str, Any]]]:
    """Return replicas of a job, and what Batch says of each, or else of the job."""
    wanted = list(places)
    if kind_of(job) == CONTAINER:
        return [(place, dict(job)) for place in wanted]
    found = describe_jobs(session, [place.job_id for place in wanted])
    return [(place, found.get(place.job_id) or _unseen(job, place)) for place in wanted]


def _unseen(job: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Stand in for a replica that Batch does not describe: it is in the state of its job, at most."""
    taken = ["status", "statusReason", "isCancelled", "isTerminated", "startedAt", "stoppedAt"]
    if place.job_id.endswith("#0"):
        taken += ["container", "attempts"]
    found = {key: job[key] for key in taken if key in job}
    if kind_of(job) == ARRAY and not is_terminal(reason_of(found).state):
        found["status"] = "PENDING"
    return found


def app_response(
    app_id: str, job: Mapping[str, Any], replicas: list[tuple[Place, dict[str, Any]]] | None = None
) -> DescribeAppResponse:
    """Return what is known of a job.

    Args:
        app_id: its app id.
        job: its description.
        replicas: descriptions of its replicas, if those were asked for.
    """
    state, msg = app_state(job)
    statuses = _role_statuses(replicas) if replicas is not None else []
    if replicas and len(replicas) > 1:
        if state is AppState.FAILED:
            msg = _first_failure(replicas) or msg
        elif state is AppState.SUCCEEDED and (failure := _first_failure(replicas)):
            msg = f"its first replica succeeded, but {failure}"
    attempts = starts_of(job)
    return DescribeAppResponse(
        app_id,
        state,
        num_restarts=max(attempts - 1, 0),
        msg=msg,
        ui_url=names.console_url(job.get("jobArn", ""), kind_of(job)),
        metadata=dict(job.get("tags") or {}),
        roles_statuses=statuses,
        roles=_roles(job),
        results=_results(job),
    )


def _results(job: Mapping[str, Any]) -> str | None:
    """Return where the results go of the script that the first replica runs."""
    groups = (job.get("nodeProperties") or {}).get("nodeRangeProperties") or [job]
    return output_in(environment(groups[0].get("container") or {})) or None


def app_state(job: Mapping[str, Any]) -> tuple[AppState, str]:
    """Return a job's state and the reason in words.

    The parent of an array job is PENDING until all its children have ended, so the children are counted.
    """
    reason = reason_of(dict(job))
    if kind_of(job) != ARRAY or is_terminal(reason.state):
        return reason.state, reason.text
    array = job["arrayProperties"]
    counts = {key: count for key, count in (array.get("statusSummary") or {}).items() if count}
    words = ", ".join(f"{count} {key}" for key, count in counts.items())
    ended = counts.get("SUCCEEDED", 0) + counts.get("FAILED", 0)
    if ended == array["size"]:
        failed = counts.get("FAILED", 0)
        return (
            (AppState.FAILED, f"{failed} of {ended} replicas failed") if failed else (AppState.SUCCEEDED, "")
        )
    if counts.get("RUNNING") or ended:
        return AppState.RUNNING, words
    return reason.state, words or reason.text


def _first_failure(replicas: list[tuple[Place, dict[str, Any]]]) -> str:
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


def _role_statuses(replicas: list[tuple[Place, dict[str, Any]]]) -> list[RoleStatus]:
    by_role: dict[str, list[ReplicaStatus]] = {}
    for place, detail in replicas:
        by_role.setdefault(place.role, []).append(_replica_status(place, detail))
    return [RoleStatus(role, found) for role, found in by_role.items()]


def _replica_status(place: Place, detail: dict[str, Any]) -> ReplicaStatus:
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
        started_at=_seconds(detail.get("startedAt")),
        ended_at=_seconds(detail.get("stoppedAt")) if ended else None,
    )


def starts_of(detail: Mapping[str, Any]) -> int:
    """Return how many attempts were begun."""
    attempts = detail.get("attempts") or []
    is_new = detail.get("status") == "RUNNING" and all(attempt.get("stoppedAt") for attempt in attempts)
    return len(attempts) + is_new


def log_group(place: Place) -> str:
    """Return the log group that a replica writes to."""
    options = (place.container.get("logConfiguration") or {}).get("options") or {}
    return str(options.get("awslogs-group", names.DEFAULT_LOG_GROUP))


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """Return a container's variables as a dict."""
    return {pair["name"]: pair.get("value", "") for pair in container.get("environment") or []}


def _host(detail: Mapping[str, Any]) -> str:
    for interface in (detail.get("container") or {}).get("networkInterfaces") or []:
        if interface.get("privateIpv4Address"):
            return str(interface["privateIpv4Address"])
    return ""


def _seconds(milliseconds: float | None) -> float | None:
    return milliseconds / 1000 if milliseconds else None


def _roles(job: Mapping[str, Any]) -> list[Role]:
    """Rebuild the roles, as far as Batch keeps them: no mounts, devices and retry policies."""
    roles: dict[str, Role] = {}
    for place in places_of(job):
        if place.role in roles:
            roles[place.role].num_replicas += 1
        elif place.container.get("command"):
            roles[place.role] = _role(place)
    return list(roles.values())


def _role(place: Place) -> Role:
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


def _resource(container: Mapping[str, Any]) -> Resource:
    needs = {each["type"]: each["value"] for each in container.get("resourceRequirements") or []}
    resource = Resource(
        cpu=int(float(needs.get("VCPU", container.get("vcpus", -1)))),
        gpu=int(needs.get("GPU", 0)),
        memMB=int(needs.get("MEMORY", container.get("memory", -1))),
    )
    if container.get("instanceType"):
        resource.capabilities[INSTANCE_TYPE] = container["instanceType"]
    return resource
