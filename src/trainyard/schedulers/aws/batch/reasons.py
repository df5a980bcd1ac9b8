"""Why a job or replica is in its state: Batch's evidence as a reason, from which the state follows.

Batch keeps a job RUNNABLE forever if nothing can run it, usually without giving a reason. The reason is then
looked for in the job's queue: are the queue and its compute environments enabled and valid, and can one of
them run a replica?
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from trainyard.schedulers.aws.aws_errors import AwsError
from trainyard.schedulers.aws.batch import names
from trainyard.schedulers.aws.batch.retry_strategy import verdict
from trainyard.schedulers.aws.session import AwsSession
from trainyard.specs.named_resources_aws import NAMED_RESOURCES
from trainyard.specs.status import AppState

SUCCEEDED = "succeeded"
RUNNING = "running"
WAITING = "waiting"
CANCELLED = "cancelled"
TIMEOUT = "timeout"
HOST_GONE = "host_gone"
QUEUE_LIMIT = "queue_limit"
DEPENDENCY = "dependency"
MAIN_NODE = "main_node"
OUT_OF_MEMORY = "out_of_memory"
IMAGE_NOT_PULLED = "no_image"
NOT_STARTED = "not_started"
EXIT = "exit"
FAILED = "failed"

#: State and text by reason.
_MEANINGS: dict[str, tuple[AppState, str]] = {
    SUCCEEDED: (AppState.SUCCEEDED, ""),
    RUNNING: (AppState.RUNNING, ""),
    WAITING: (AppState.PENDING, ""),
    CANCELLED: (AppState.CANCELLED, "{status}"),
    TIMEOUT: (AppState.FAILED, "stopped at its time limit: {status}"),
    HOST_GONE: (AppState.FAILED, "its host was taken away: {status}"),
    QUEUE_LIMIT: (AppState.FAILED, "ended by the queue's limit on waiting: {status}"),
    DEPENDENCY: (AppState.FAILED, "a job that it depends on failed: {status}"),
    MAIN_NODE: (AppState.CANCELLED, "ended with the main node"),
    OUT_OF_MEMORY: (AppState.FAILED, "out of memory: {container}"),
    IMAGE_NOT_PULLED: (AppState.FAILED, "its image cannot be pulled: {container}"),
    NOT_STARTED: (AppState.FAILED, "could not be started: {container}"),
    EXIT: (AppState.FAILED, "exit code {code}{more}"),
    FAILED: (AppState.FAILED, "{status}"),
}

#: The status reason of jobs that we, or TorchX, cancelled.
_OUR_CANCELLING = re.compile(r"cancelled by .+ with trainyard$|killed via torchx CLI$")

# Patterns of the job's status reason, and of the container's reason. The first match counts.
_OF_STATUS: list[tuple[str, re.Pattern[str]]] = [
    (TIMEOUT, re.compile(r"attempt duration exceeded timeout", re.I)),
    (HOST_GONE, re.compile(r"^Host EC2", re.I)),
    (QUEUE_LIMIT, re.compile(r"^(MISCONFIGURATION|CAPACITY):")),
    (DEPENDENCY, re.compile(r"^Dependent Job failed", re.I)),
    (MAIN_NODE, re.compile(r"^Main node", re.I)),
]
_OF_CONTAINER: list[tuple[str, re.Pattern[str]]] = [
    (OUT_OF_MEMORY, re.compile(r"OutOfMemory", re.I)),
    (IMAGE_NOT_PULLED, re.compile(r"CannotPull|CannotInspectContainer.*image", re.I)),
    (
        NOT_STARTED,
        re.compile(r"Cannot(Start|Create)Container|ResourceInitializationError|DockerTimeout", re.I),
    ),
]
_NOISE = re.compile(r"^Essential container in task exited$", re.I)

_WAITING_TEXTS: dict[str, str] = {
    "SUBMITTED": "AWS Batch has not evaluated it yet",
    "PENDING": "waiting for what it depends on",
    "RUNNABLE": "waiting for a host in its queue",
    "STARTING": "its host is ready; the container is being started",
}


class Reason(NamedTuple):
    """Why a job or replica is in its state."""

    code: str
    text: str

    @property
    def state(self) -> AppState:
        """The state that follows."""
        return _MEANINGS[self.code][0]


def reason_of(job: dict[str, Any]) -> Reason:
    """Return the reason for the state of a described or listed job, node or array child."""
    status = job.get("status", "")
    said = str(job.get("statusReason") or "").strip()
    if status == "SUCCEEDED":
        return Reason(SUCCEEDED, "")
    if status == "RUNNING":
        return Reason(RUNNING, "")
    if status != "FAILED":
        return Reason(WAITING, said or _WAITING_TEXTS.get(status, ""))
    return _failure(job, said)


def _failure(job: dict[str, Any], said: str) -> Reason:
    code, container = exit_code(job), container_reason(job)
    kind = _kind(job, said, container, code)
    more = f": {container}" if container else f": {said}" if said and not _NOISE.match(said) else ""
    state, form = _MEANINGS[kind]
    text = form.format(status=said, container=container or said, code=code, more=more)
    again = verdict(job, code, container, said) if state is AppState.FAILED else ""
    return Reason(kind, "; ".join(filter(None, [text or "AWS Batch gives no reason", again])))


def _kind(job: dict[str, Any], said: str, container: str, code: int | None) -> str:
    for kind, pattern in _OF_STATUS:
        if pattern.search(said):
            return kind
    if job.get("isCancelled") or job.get("isTerminated") or _OUR_CANCELLING.match(said):
        return CANCELLED
    for kind, pattern in _OF_CONTAINER:
        if pattern.search(container) or pattern.search(said):
            return kind
    return EXIT if code else FAILED


def exit_code(job: dict[str, Any]) -> int | None:
    """Return the exit code of the last attempt, if any."""
    for container in _containers(job):
        if container.get("exitCode") is not None:
            return int(container["exitCode"])
    return None


def container_reason(job: dict[str, Any]) -> str:
    """Return the reason that the last attempt's container gives; may be empty."""
    for container in _containers(job):
        if container.get("reason"):
            return str(container["reason"]).strip()
    return ""


def _containers(job: dict[str, Any]) -> list[dict[str, Any]]:
    last = (job.get("attempts") or [{}])[-1]
    return [job.get("container") or {}, last.get("container") or {}]


# ---- why a job waits


#: How long the description of a queue is reused, so that watching a job makes few calls.
FRESH_SECONDS = 60.0


class QueueInspector:
    """Describes queues, and remembers them for a while."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, dict[str, Any] | None, list[dict[str, Any]]]] = {}

    def why(self, session: AwsSession, queue: str, needs: Mapping[str, int]) -> str:
        """Return what keeps a queue from running a job; "" if nothing is found.

        Args:
            session: the queue's session.
            queue: its name or ARN.
            needs: what a replica needs: ``VCPU``, ``MEMORY`` in MiB, ``GPU``.
        """
        try:
            found, environments = self._describe(session, queue)
        except AwsError:  # the permission may be missing; the job's state is known nevertheless
            return ""
        if found is None:
            return "its queue no longer exists"
        return "; ".join(queue_problems(found, environments, needs))

    def _describe(
        self, session: AwsSession, queue: str
    ) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        key = (session.region, names.queue_name(queue))
        seen = self._seen.get(key)
        if seen is None or time.monotonic() - seen[0] > FRESH_SECONDS:
            seen = self._seen[key] = (time.monotonic(), *describe_queue(session, queue))
        return seen[1:]


def describe_queue(session: AwsSession, queue: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return a queue, None if it does not exist, and its compute environments in order."""
    pages = session.pages("batch", "DescribeJobQueues", "jobQueues", jobQueues=[queue])
    queues = [each for page in pages for each in page]
    if not queues:
        return None, []
    arns = [each["computeEnvironment"] for each in queues[0].get("computeEnvironmentOrder") or []]
    if not arns:
        return queues[0], []
    pages = session.pages(
        "batch", "DescribeComputeEnvironments", "computeEnvironments", computeEnvironments=arns
    )
    return queues[0], [environment for page in pages for environment in page]


def queue_problems(
    queue: Mapping[str, Any], environments: list[dict[str, Any]], needs: Mapping[str, int]
) -> Iterator[str]:
    """Find what keeps a queue from running a job with these needs."""
    name = queue.get("jobQueueName", "")
    if queue.get("state") == "DISABLED":
        yield f"the queue {name} is disabled"
    if queue.get("status") == "INVALID":
        yield f"the queue {name} is invalid: {queue.get('statusReason') or 'no reason is given'}"
    problems = [list(environment_problems(environment, needs)) for environment in environments]
    if all(problems):  # one that works is enough
        yield from chain.from_iterable(problems)
    if not environments:
        yield f"the queue {name} has no compute environment"


def environment_problems(environment: Mapping[str, Any], needs: Mapping[str, int]) -> Iterator[str]:
    """Find what keeps a compute environment from running a job with these needs."""
    name = environment.get("computeEnvironmentName", "")
    if environment.get("state") == "DISABLED":
        yield f"the compute environment {name} is disabled"
    if environment.get("status") == "INVALID":
        reason = environment.get("statusReason") or "no reason is given"
        yield f"the compute environment {name} is invalid: {reason}"
    resources = environment.get("computeResources") or {}
    most = resources.get("maxvCpus")
    if most is not None and needs.get("VCPU", 0) > most:
        yield f"the compute environment {name} has at most {most} vCPUs, and a replica needs {needs['VCPU']}"
    if str(resources.get("type", "")).startswith("FARGATE"):
        if needs.get("GPU"):
            yield f"the compute environment {name} is Fargate's, which has no GPUs"
    elif resources.get("instanceTypes") and not _fits_some(resources["instanceTypes"], needs):
        types = ", ".join(resources["instanceTypes"])
        wanted = [f"{count} {_UNITS[kind]}" for kind, count in needs.items() if count and kind in _UNITS]
        yield f"no instance type of the compute environment {name} ({types}) has {', '.join(wanted)}"


_UNITS = {"VCPU": "vCPUs", "MEMORY": "MiB", "GPU": "GPUs"}


def _fits_some(instance_types: list[str], needs: Mapping[str, int]) -> bool:
    """Tell whether an instance type may hold a replica; unknown types and families may."""
    for name in instance_types:
        factory = NAMED_RESOURCES.get(f"aws_{name}")
        if factory is None:
            return True
        resource = factory()
        if (
            resource.cpu >= needs.get("VCPU", 0)
            and resource.memMB >= needs.get("MEMORY", 0)
            and resource.gpu >= needs.get("GPU", 0)
        ):
            return True
    return False
