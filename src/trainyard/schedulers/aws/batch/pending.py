"""Why a job waits: what its queue and the compute environments behind it say.

Batch keeps a job RUNNABLE for ever when nothing can run it, and mostly does not say why. So the queue is
looked at: is it enabled and valid, are its compute environments, and could any of them hold such a replica?
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.schedulers.aws.batch import names
from trainyard.schedulers.aws.errors import AwsError
from trainyard.schedulers.aws.session import AwsSession
from trainyard.specs.named_resources_aws import NAMED_RESOURCES

#: How long what a queue says is taken to hold, so that watching a job does not ask again and again.
FRESH_SECONDS = 60.0


class QueueInspector:
    """Looks at queues, and remembers for a while what it saw."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, list[dict[str, Any]], dict[str, Any] | None]] = {}

    def why(self, session: AwsSession, queue: str, needs: Mapping[str, int]) -> str:
        """Return in words what keeps a queue from running a job; "" if nothing is seen to.

        Args:
            session: where the queue is.
            queue: its name or ARN.
            needs: what a replica needs: ``VCPU``, ``MEMORY`` in MiB, ``GPU``.
        """
        try:
            found, environments = self._look(session, queue)
        except AwsError:  # the permission may be missing; the job's own state is known all the same
            return ""
        if found is None:
            return "its queue does not exist any more"
        return "; ".join(queue_problems(found, environments, needs))

    def _look(self, session: AwsSession, queue: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        key = (session.region, names.queue_name(queue))
        seen = self._seen.get(key)
        if seen is None or time.monotonic() - seen[0] > FRESH_SECONDS:
            found, environments = look_at_queue(session, queue)
            seen = self._seen[key] = (time.monotonic(), environments, found)
        return seen[2], seen[1]


def look_at_queue(session: AwsSession, queue: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return a queue, None if there is none, and its compute environments in order."""
    queues = [
        q
        for page in session.pages("batch", "DescribeJobQueues", "jobQueues", jobQueues=[queue])
        for q in page
    ]
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
    if all(problems):  # one that works suffices
        for found in problems:
            yield from found
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
        yield (
            f"no instance type of the compute environment {name} "
            f"({', '.join(resources['instanceTypes'])}) has "
            + ", ".join(
                f"{count} {_UNITS[kind]}" for kind, count in needs.items() if count and kind in _UNITS
            )
        )


_UNITS = {"VCPU": "vCPUs", "MEMORY": "MiB", "GPU": "GPUs"}


def _fits_some(instance_types: list[str], needs: Mapping[str, int]) -> bool:
    """Tell whether an instance type may hold a replica. One that we do not know may; so may a family."""
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
