"""Jobs as AWS Batch keeps them: an array's or a multi-node job's parent, its children, attempts, states."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from tests.aws.fake.wire import ACCOUNT, REGION

STATES = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED")
ENDED = ("SUCCEEDED", "FAILED")
_tasks = itertools.count(1)


def arn(kind: str, name: str) -> str:
    return f"arn:aws:batch:{REGION}:{ACCOUNT}:{kind}/{name}"


@dataclass
class Attempt:
    """One run of a container."""

    stream: str
    task: str
    started: int | None = None
    stopped: int | None = None
    exit_code: int | None = None
    reason: str = ""
    status_reason: str = ""

    def detail(self) -> dict[str, Any]:
        container: dict[str, Any] = {"taskArn": self.task, "logStreamName": self.stream}
        container["containerInstanceArn"] = arn("container-instance", "i")
        if self.exit_code is not None:
            container["exitCode"] = self.exit_code
        if self.reason:
            container["reason"] = self.reason
        return {
            "container": container,
            "startedAt": self.started or 0,
            "stoppedAt": self.stopped or 0,
            "statusReason": self.status_reason,
        }


@dataclass
class Job:
    """A job, or a child of one: ``index`` is then its number, and its id ends in ``#n`` (node) or ``:n``."""

    id: str
    name: str
    queue: str
    definition: dict[str, Any]
    request: dict[str, Any]
    created: int
    visible_at: float = 0.0
    status: str = "SUBMITTED"
    status_reason: str = ""
    started: int | None = None
    stopped: int | None = None
    attempts: list[Attempt] = field(default_factory=list)
    current: Attempt | None = None
    is_cancelled: bool = False
    is_terminated: bool = False
    parent: Job | None = None
    index: int | None = None
    children: list[Job] = field(default_factory=list)
    container: dict[str, Any] = field(default_factory=dict)

    @property
    def is_node(self) -> bool:
        return self.parent is not None and self.parent.kind == "multinode"

    @property
    def kind(self) -> str:
        if self.definition["type"] == "multinode":
            return "multinode"
        return "array" if self.request.get("arrayProperties") else "container"

    @property
    def leaves(self) -> list[Job]:
        """What runs: the children, or the job itself."""
        return self.children or [self]

    @property
    def max_attempts(self) -> int:
        strategy = self.request.get("retryStrategy") or self.definition.get("retryStrategy") or {}
        attempts: int = strategy.get("attempts", 1)
        return attempts

    def new_attempt(self) -> Attempt:
        """Begin a run: a task and a log stream of its own."""
        task = f"{next(_tasks):032x}"
        stream = f"{self.definition['jobDefinitionName']}/default/{task}"
        task_arn = f"arn:aws:ecs:{REGION}:{ACCOUNT}:task/cluster/{task}"
        self.current = Attempt(stream, task_arn)
        return self.current

    def environment(self, attempt: int) -> dict[str, str]:
        """Return the variables that Batch sets in a container."""
        whole = self.parent or self
        env = {
            "AWS_BATCH_JOB_ID": self.id,
            "AWS_BATCH_JQ_NAME": whole.queue.rpartition("/")[2],
            "AWS_BATCH_CE_NAME": "fake",
            "AWS_BATCH_JOB_ATTEMPT": str(attempt),
        }
        if self.is_node:
            nodes = whole.definition["nodeProperties"]
            env |= {
                "AWS_BATCH_JOB_NODE_INDEX": str(self.index),
                "AWS_BATCH_JOB_NUM_NODES": str(len(whole.children)),
                "AWS_BATCH_JOB_MAIN_NODE_INDEX": str(nodes["mainNode"]),
            }
            if self.index != nodes["mainNode"]:
                env["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "127.0.0.1"
        elif self.parent is not None:
            env["AWS_BATCH_JOB_ARRAY_INDEX"] = str(self.index)
            env["AWS_BATCH_JOB_ARRAY_SIZE"] = str(len(whole.children))
        return env

    def _times(self) -> dict[str, Any]:
        times = {"createdAt": self.created}
        if self.started is not None:
            times["startedAt"] = self.started
        if self.stopped is not None:
            times["stoppedAt"] = self.stopped
        return times

    def summary(self) -> dict[str, Any]:
        """Return what ListJobs says."""
        shown: dict[str, Any] = {
            "jobArn": arn("job", self.id),
            "jobId": self.id,
            "jobName": self.name,
            "status": self.status,
            "jobDefinition": self.definition["jobDefinitionArn"],
            **self._times(),
        }
        if self.status_reason:
            shown["statusReason"] = self.status_reason
        last = self.current or (self.attempts[-1] if self.attempts else None)
        if last is not None and last.exit_code is not None:
            shown["container"] = {"exitCode": last.exit_code}
        shown |= self._family(detailed=False)
        return shown

    def detail(self) -> dict[str, Any]:
        """Return what DescribeJobs says."""
        whole = self.parent or self
        shown: dict[str, Any] = {
            "jobArn": arn("job", self.id),
            "jobId": self.id,
            "jobName": self.name,
            "jobQueue": self.queue,
            "status": self.status,
            "attempts": [attempt.detail() for attempt in self.attempts],
            "jobDefinition": self.definition["jobDefinitionArn"],
            "retryStrategy": {"attempts": self.max_attempts, "evaluateOnExit": self._rules()},
            "parameters": {},
            "dependsOn": [],
            "tags": whole.request.get("tags", {}),
            "propagateTags": whole.request.get("propagateTags", False),
            "platformCapabilities": self.definition.get("platformCapabilities", []),
            "isCancelled": self.is_cancelled,
            "isTerminated": self.is_terminated,
            **({"startedAt": 0} | self._times()),
        }
        if self.status_reason:
            shown["statusReason"] = self.status_reason
        for key in ("shareIdentifier", "timeout"):
            value = whole.request.get(key) or self.definition.get(key)
            if value is not None:
                shown[key] = value
        if "schedulingPriority" in self.definition:
            shown["schedulingPriority"] = self.definition["schedulingPriority"]
        if self.kind != "multinode" or self.is_node:
            shown["container"] = self._container()
        elif "nodeProperties" in self.definition:
            shown["nodeProperties"] = self.definition["nodeProperties"] | {"numNodes": len(self.children)}
        shown |= self._family(detailed=True)
        return shown

    def _rules(self) -> list[dict[str, Any]]:
        strategy = self.request.get("retryStrategy") or self.definition.get("retryStrategy") or {}
        rules: list[dict[str, Any]] = strategy.get("evaluateOnExit", [])
        return rules

    def _container(self) -> dict[str, Any]:
        shown = dict(self.container)
        last = self.current or (self.attempts[-1] if self.attempts else None)
        if last is not None:
            shown |= {"taskArn": last.task, "logStreamName": last.stream}
            if last.exit_code is not None:
                shown["exitCode"] = last.exit_code
            if last.reason:
                shown["reason"] = last.reason
        return shown

    def _family(self, *, detailed: bool) -> dict[str, Any]:
        if self.is_node:
            assert self.parent is not None
            main = self.index == self.parent.definition["nodeProperties"]["mainNode"]
            return {
                "nodeDetails" if detailed else "nodeProperties": {"nodeIndex": self.index, "isMainNode": main}
            }
        if self.parent is not None:
            return {"arrayProperties": {"index": self.index}}
        if self.kind == "array":
            counts = {state: sum(child.status == state for child in self.children) for state in STATES}
            return {"arrayProperties": {"size": len(self.children), "statusSummary": counts}}
        if self.kind == "multinode" and not detailed:
            return {"nodeProperties": {"numNodes": len(self.children)}}
        return {}
