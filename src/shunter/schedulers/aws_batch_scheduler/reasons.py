"""Why a job or replica is in its state: the state and the text that follow from Batch's evidence.

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

from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_batch_scheduler.retry_strategy import verdict
from shunter.specs.named_resources_aws import NAMED_RESOURCES
from shunter.specs.status import AppState

#: What a job's status means; that it was cancelled is in its status reason.
JOB_STATE: dict[str, AppState] = {
    "SUBMITTED": AppState.PENDING,
    "PENDING": AppState.PENDING,
    "RUNNABLE": AppState.PENDING,
    "STARTING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}

#: The status reason of jobs that we, or TorchX, cancelled.
_OUR_CANCELLING = re.compile(r"cancelled by .+ with shunter$|killed via torchx CLI$")

# What patterns of the job's status reason, and of the container's reason, mean. The first match counts.
_OF_STATUS = [
    (r"(?i)attempt duration exceeded timeout", AppState.FAILED, "stopped at its time limit: {status}"),
    (r"(?i)^Host EC2", AppState.FAILED, "its host was taken away: {status}"),
    (r"^(MISCONFIGURATION|CAPACITY):", AppState.FAILED, "ended by the queue's limit on waiting: {status}"),
    (r"(?i)^Dependent Job failed", AppState.FAILED, "a job that it depends on failed: {status}"),
    (r"(?i)^Main node", AppState.CANCELLED, "ended with the main node"),
]
_OF_CONTAINER = [
    (r"(?i)OutOfMemory", "out of memory: {container}"),
    (r"(?i)CannotPull|CannotInspectContainer.*image", "its image cannot be pulled: {container}"),
    (
        r"(?i)Cannot(Start|Create)Container|ResourceInitializationError|DockerTimeout",
        "could not be started: {container}",
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

    state: AppState
    text: str


def reason_of(job: dict[str, Any]) -> Reason:
    """Return the reason for the state of a described or listed job, node or array child."""
    status = job.get("status", "")
    said = str(job.get("statusReason") or "").strip()
    state = JOB_STATE.get(status, AppState.PENDING)
    if state is AppState.FAILED:
        return _failure(job, said)
    if state is AppState.PENDING:
        return Reason(state, said or _WAITING_TEXTS.get(status, ""))
    return Reason(state, "")


def _failure(job: dict[str, Any], said: str) -> Reason:
    code, container = exit_code(job), container_reason(job)
    state, form = _cause(job, said, container, code)
    more = f": {container}" if container else f": {said}" if said and not _NOISE.match(said) else ""
    text = form.format(status=said, container=container or said, code=code, more=more)
    again = verdict(job, code, container, said) if state is AppState.FAILED else ""
    return Reason(state, "; ".join(filter(None, [text or "AWS Batch gives no reason", again])))


def _cause(job: dict[str, Any], said: str, container: str, code: int | None) -> tuple[AppState, str]:
    """Return the state of a job that Batch calls FAILED, and the form of the text that says why."""
    for pattern, state, form in _OF_STATUS:
        if re.search(pattern, said):
            return state, form
    if job.get("isCancelled") or job.get("isTerminated") or _OUR_CANCELLING.match(said):
        return AppState.CANCELLED, "{status}"
    for pattern, form in _OF_CONTAINER:
        if re.search(pattern, container) or re.search(pattern, said):
            return AppState.FAILED, form
    return AppState.FAILED, "exit code {code}{more}" if code else "{status}"


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


#: How long what was found of a queue is reused, so that watching a job makes few calls.
FRESH_SECONDS = 60.0


class QueueInspector:
    """Looks for what keeps queues from running jobs, and remembers it for a while."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], tuple[float, str]] = {}

    def why(self, session: AwsSession, queue: str, needs: Mapping[str, int]) -> str:
        """Return what keeps a queue from running a job; see `_why_waiting`."""
        key = (session.region, queue, *needs.items())
        if key not in self._seen or time.monotonic() - self._seen[key][0] > FRESH_SECONDS:
            self._seen[key] = (time.monotonic(), _why_waiting(session, queue, needs))
        return self._seen[key][1]


def _why_waiting(session: AwsSession, queue: str, needs: Mapping[str, int]) -> str:
    """Return what keeps a queue from running a job; "" if nothing is found.

    Args:
        session: the queue's session.
        queue: its name or ARN.
        needs: what a replica needs: ``VCPU``, ``MEMORY`` in MiB, ``GPU``.
    """
    try:
        found, environments = describe_queue(session, queue)
    except AwsError:  # the permission may be missing; the job's state is known nevertheless
        return ""
    if found is None:
        return "its queue no longer exists"
    return "; ".join(queue_problems(found, environments, needs))


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
        has = {"VCPU": resource.cpu, "MEMORY": resource.memMB, "GPU": resource.gpu}
        if all(has[kind] >= needs.get(kind, 0) for kind in has):
            return True
    return False
