"""Finding jobs on Batch, by id, by name and all of them, and reading their descriptions.

Batch lists the jobs of one queue, without their tags. So a list of all jobs takes a call for each page of
each queue, and one for each hundred jobs, whose tags tell which are ours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from shunter.parallel import for_all
from shunter.schedulers.api import DescribeAppResponse, ListAppResponse
from shunter.schedulers.aws import aws_names, batch_jobs
from shunter.schedulers.aws.batch_jobs import (
    JobRef,
    JustSubmitted,
    find_by_name,
    seconds_of,
)
from shunter.schedulers.aws.session import AwsSession, SessionPool
from shunter.schedulers.aws_batch_scheduler import names
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
#: The role of jobs that do not name their roles.
UNNAMED_ROLE = "node"


class ReplicaRef(NamedTuple):
    """A replica: its role and index, and the id under which Batch describes it."""

    role: str
    replica: int
    job_id: str
    container: Mapping[str, Any]


def describe_jobs(
    session: AwsSession,
    ids: Iterable[str],
    keep: Callable[[dict[str, Any]], dict[str, Any]] = lambda job: job,
) -> dict[str, dict[str, Any]]:
    """Describe jobs by id, a hundred per call and several calls in parallel; unknown ones are left out.

    ``keep`` reduces a description to save memory; it must keep the id.
    """
    wanted = list(dict.fromkeys(ids))
    chunks = [wanted[start : start + BATCH_SIZE] for start in range(0, len(wanted), BATCH_SIZE)]

    def describe(chunk: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = session.call("batch", "DescribeJobs", jobs=chunk).get("jobs", [])
        return [keep(job) for job in found]

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
        ui_url=names.console_url(job.get("jobArn", ""), kind_of(job)),
        metadata=dict(job.get("tags") or {}),
        roles_statuses=statuses,
        roles=_roles(job),
        results=_results(job),
        started_at=min(filter(None, (seconds_of(each.get("startedAt")) for each in tries)), default=None),
        ended_at=seconds_of(job.get("stoppedAt")),
    )


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
    return str(options.get("awslogs-group", names.DEFAULT_LOG_GROUP))


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
    needs = {each["type"]: each["value"] for each in container.get("resourceRequirements") or []}
    resource = Resource(
        cpu=int(float(needs.get("VCPU", container.get("vcpus", -1)))),
        gpu=int(needs.get("GPU", 0)),
        memMB=int(needs.get("MEMORY", container.get("memory", -1))),
    )
    if container.get("instanceType"):
        resource.capabilities[INSTANCE_TYPE] = container["instanceType"]
    return resource


Job = dict[str, Any]


class JobFinder:
    """Finds jobs by app id, and keeps the sessions to reach them.

    Args:
        clients: clients to use instead of making them, by service.
        recall: returns what the history knows of a job of ours.
        configured: returns the options configured for this directory.
    """

    def __init__(
        self,
        clients: Mapping[str, Any],
        recall: Callable[[str], str | None],
        configured: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.sessions = SessionPool(clients, configured)
        self._recall = recall
        self._known: dict[str, JobRef] = {}
        self.just_submitted = JustSubmitted()

    def session_of(self, cfg: Mapping[str, Any]) -> AwsSession:
        """Return the session for these options."""
        region = cfg.get("region") or names.region_of_arn(cfg.get("queue") or "")
        return self.sessions.get(region, cfg.get("profile"))

    def _ref(self, app_id: str) -> JobRef | None:
        if app_id not in self._known:
            text = self._recall(app_id)
            if not text:
                return None
            self._known[app_id] = JobRef.from_text(text)
        return self._known[app_id]

    def remember(self, app_id: str, ref: JobRef) -> None:
        """Remember where a job is that was just submitted."""
        self._known[app_id] = ref
        self.just_submitted.add(app_id)

    def session_and_id(self, app_id: str) -> tuple[AwsSession, str]:
        """Return session and Batch's id of a job that was found or submitted before."""
        ref = self._known[app_id]
        return self.sessions.get(ref.region, ref.profile), ref.job_id

    def find(self, app_id: str) -> tuple[AwsSession, Job] | None:
        """Find a job; None if it does not exist or was deleted."""
        job = self.find_many([app_id])[app_id]
        if job is None:
            return None
        return self.session_and_id(app_id)[0], job

    def find_many(self, app_ids: list[str]) -> dict[str, Job | None]:
        """Find jobs by their known ids, with a call for each hundred, and the others by name."""
        refs = {app_id: ref for app_id in app_ids if (ref := self._ref(app_id)) is not None}
        groups: dict[tuple[str, str], dict[str, str]] = {}
        for app_id, ref in refs.items():
            groups.setdefault((ref.region, ref.profile), {})[ref.job_id] = app_id
        found: dict[str, Job | None] = dict.fromkeys(app_ids)
        for (region, profile), ids in groups.items():
            for job_id, job in describe_jobs(self.sessions.get(region, profile), ids).items():
                found[ids[job_id]] = job
        for app_id in app_ids:
            if found[app_id] is None and app_id not in self.just_submitted:
                found[app_id] = self._find_by_name(app_id, refs.get(app_id))
        for app_id in [app_id for app_id in found if found[app_id] is not None]:
            self.just_submitted.remove(app_id)
        return {app_id: None if _is_deleted(job) else job for app_id, job in found.items()}

    def _find_by_name(self, app_id: str, ref: JobRef | None) -> Job | None:
        parts = aws_names.split_app_id(app_id)
        if parts is None:
            return None
        session = self.sessions.get(ref.region, ref.profile) if ref else self.sessions.get(None, None)
        summaries = find_by_name(session, "ListJobs", *parts)
        if not summaries:
            return None
        job_id = summaries[0]["jobId"]
        job = describe_jobs(session, [job_id]).get(job_id)
        if job is not None:
            arn = job.get("jobArn") or job_id
            region, profile = (ref.region, ref.profile) if ref else ("", "")
            self._known[app_id] = JobRef(job_id, region, profile, arn)
        return job


def _is_deleted(job: Job | None) -> bool:
    return job is not None and aws_names.TAG_DELETED in (job.get("tags") or {})


# What `list` keeps of each job's description.
_KEPT = (
    "jobId",
    "jobArn",
    "jobName",
    "createdAt",
    "status",
    "statusReason",
    "stoppedAt",
    "isCancelled",
    "isTerminated",
    "arrayProperties",
    "tags",
)


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
    wanted = None if states is None else frozenset(states)
    queues = [queue] if queue is not None else queue_names(session)
    summaries = batch_jobs.list_jobs(session, "ListJobs", queues, since, keep=_kept)
    found = {job["jobId"]: (aws_names.queue_name(name), job) for name, job in summaries}
    if wanted is not None:
        found = {key: pair for key, pair in found.items() if app_state_of_listed(pair[1]) & wanted}
    if not everything:
        details = describe_jobs(session, found, _kept)
        found = {
            key: (name, {**job, **details[key]})
            for key, (name, job) in found.items()
            if key in details and aws_names.is_ours(details[key].get("tags") or {})
        }
    rows = [_row(name, job) for name, job in found.values()]
    return sorted(
        (row for row in rows if wanted is None or row.state in wanted),
        key=lambda row: row.submitted_at or 0.0,
    )


def app_state_of_listed(job: dict[str, Any]) -> frozenset[AppState]:
    """Return the possible states of a listed job: the list does not show the progress of an array."""
    state = reason_of(job).state
    if kind_of(job) == ARRAY and state is AppState.PENDING:
        return frozenset({state, AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED})
    return frozenset({state})


def _kept(job: dict[str, Any]) -> dict[str, Any]:
    return {key: job[key] for key in _KEPT if key in job}


def _row(queue: str, job: dict[str, Any]) -> ListAppResponse:
    state, _ = app_state(job)
    tags = job.get("tags") or {}
    name = tags.get(aws_names.TAG_APP_NAME) or tags.get(aws_names.TAG_PREDECESSOR_APP_NAME) or job["jobName"]
    row = ListAppResponse(aws_names.make_app_id(queue, job["jobName"]), state, name=name)
    row.submitted_at = seconds_of(job.get("createdAt"))
    row.started_at = seconds_of(job.get("startedAt"))
    row.ended_at = seconds_of(job.get("stoppedAt"))
    return row
