"""AWS Batch in memory: definitions, queues, and jobs, whose life a test drives or which really run."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

from tests.aws.fake.execution import Container
from tests.aws.fake.jobs import ENDED, Attempt, Job, arn
from tests.aws.fake.logs import Logs
from tests.aws.fake.retries import is_retried
from tests.aws.fake.wire import ApiError

LOG_GROUP = "/aws/batch/job"


class Batch:
    """The service.

    Attributes:
        runs: whether submitted jobs are run at once, as processes; otherwise a test moves them on.
        visible_after: seconds until a new job can be listed or described.
        now: gives the time in seconds since the epoch.
    """

    def __init__(self, logs: Logs, now: Callable[[], float]) -> None:
        self._logs = logs
        self.now = now
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.runs = True
        self.visible_after = 0.0
        #: Ids of jobs that TerminateJobs reports as errors.
        self.unstoppable: set[str] = set()
        self.queues: dict[str, dict[str, Any]] = {}
        self.environments: dict[str, dict[str, Any]] = {}
        self.definitions: dict[str, list[dict[str, Any]]] = {}
        self.jobs: dict[str, Job] = {}
        self._containers: dict[str, Container] = {}
        self._threads: list[threading.Thread] = []
        self.add_environment("fake")
        self.add_queue("queue")

    # ---- what a test does

    def add_environment(self, name: str, **detail: Any) -> None:
        self.environments[name] = {
            "computeEnvironmentName": name,
            "computeEnvironmentArn": arn("compute-environment", name),
            "type": "MANAGED",
            "state": "ENABLED",
            "status": "VALID",
            "statusReason": "ComputeEnvironment Healthy",
            **detail,
        }

    def add_queue(self, name: str, environments: tuple[str, ...] = ("fake",), **detail: Any) -> None:
        order = [
            {"order": i, "computeEnvironment": arn("compute-environment", environment)}
            for i, environment in enumerate(environments)
        ]
        self.queues[name] = {
            "jobQueueName": name,
            "jobQueueArn": arn("job-queue", name),
            "state": "ENABLED",
            "status": "VALID",
            "statusReason": "JobQueue Healthy",
            "priority": 1,
            "computeEnvironmentOrder": order,
            "tags": {},
            **detail,
        }

    def job(self, job_id: str) -> Job:
        """Return a job, or a child of it, by its id."""
        with self.lock:
            return self.jobs[job_id.rpartition("/")[2] if job_id.startswith("arn:") else job_id]

    def advance(self, job_id: str, status: str, reason: str = "") -> None:
        """Move a job, or one child, to a state in which it has not ended; its children go along."""
        with self.lock:
            job = self.job(job_id)
            for one in [job, *job.children]:
                self._advance(one, status, reason)
            if job.parent is not None:
                self._settle_parent(job.parent)
            self.changed.notify_all()

    def finish(
        self, job_id: str, exit_code: int | None = 0, reason: str = "", status_reason: str = ""
    ) -> None:
        """End the current attempt of a job and its children; they run again if the retry rules say so."""
        with self.lock:
            for leaf in self.job(job_id).leaves:
                if leaf.status not in ENDED:
                    self._advance(leaf, "RUNNING")
                    self.end_attempt(leaf, exit_code, reason, status_reason)

    def log(self, job_id: str, *lines: str | tuple[int, str], attempt: int | None = None, **put: Any) -> None:
        """Write to the log of a container job or child, of the current attempt or of an earlier one."""
        job = self.job(job_id)
        run = job.current if attempt is None else job.attempts[attempt]
        assert run is not None, "it has not started"
        self._logs.put(self.log_group(job), run.stream, lines, **put)

    def wait(self, job_id: str, *states: str, timeout: float = 30.0) -> Job:
        """Wait until a job is in one of these states (by default, has ended)."""
        with self.lock:
            job = self.job(job_id)
            assert self.changed.wait_for(lambda: job.status in (states or ENDED), timeout), job
            return job

    def close(self) -> None:
        """Kill what runs and wait for its end."""
        with self.lock:
            self.runs = False
            for container in self._containers.values():
                container.kill("the fake is closed")
        for thread in self._threads:
            thread.join(30)

    @staticmethod
    def log_group(job: Job) -> str:
        options = job.container.get("logConfiguration", {}).get("options", {})
        group: str = options.get("awslogs-group", LOG_GROUP)
        return group

    # ---- life

    def milliseconds(self) -> int:
        return int(self.now() * 1000)

    def submit(self, definition: dict[str, Any], queue: dict[str, Any], request: dict[str, Any]) -> Job:
        """Make a job and its children."""
        job_id = str(uuid.uuid4())
        visible = self.now() + self.visible_after
        base = (request["jobName"], queue["jobQueueArn"], definition, request, self.milliseconds(), visible)
        job = Job(job_id, *base)
        job.container = dict(definition.get("containerProperties", {}))
        size = request.get("arrayProperties", {}).get("size", 0)
        if definition["type"] == "multinode":
            nodes = definition["nodeProperties"]
            count = request.get("nodeOverrides", {}).get("numNodes", nodes["numNodes"])
            job.children = [Job(f"{job_id}#{i}", *base, parent=job, index=i) for i in range(count)]
            for child in job.children:
                child.container = dict(_container_of(nodes, child.index or 0, count))
        elif size:
            job.children = [Job(f"{job_id}:{i}", *base, parent=job, index=i) for i in range(size)]
            for child in job.children:
                child.container = dict(job.container)
        for leaf in job.leaves:
            overrides = _overrides(request, leaf)
            leaf.container |= {k: v for k, v in overrides.items() if k in ("command",)}
            leaf.container["environment"] = [
                *leaf.container.get("environment", []),
                *overrides.get("environment", []),
            ]
        with self.lock:
            for one in [job, *job.children]:
                self.jobs[one.id] = one
        if self.runs:
            for leaf in job.leaves:
                thread = threading.Thread(target=self._run, args=(leaf,), name=f"fake-{leaf.id}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return job

    def stop(self, job: Job, reason: str, *, terminate: bool) -> None:
        """Cancel or terminate, each in the states in which it works."""
        with self.lock:
            for leaf in job.leaves:
                if leaf.status in ENDED:
                    continue
                if leaf.status in ("STARTING", "RUNNING"):
                    if not terminate:
                        continue
                    leaf.is_terminated = True
                    if leaf.id in self._containers:
                        leaf.status_reason = reason
                        self._containers[leaf.id].kill(reason)
                        continue
                else:
                    leaf.is_cancelled = True
                job.is_terminated |= leaf.is_terminated
                job.is_cancelled |= leaf.is_cancelled
                self.end_attempt(leaf, 137 if leaf.is_terminated else None, "", reason)
            job.is_terminated |= any(leaf.is_terminated for leaf in job.leaves)

    def end_attempt(self, leaf: Job, exit_code: int | None, reason: str, status_reason: str = "") -> bool:
        """End a leaf's attempt; returns whether another one follows."""
        with self.lock:
            stopped = leaf.is_terminated or leaf.is_cancelled
            now = self.milliseconds()
            if leaf.current is not None:
                run = leaf.current
                run.exit_code, run.reason, run.stopped = exit_code, reason, now
                run.status_reason = status_reason or "Essential container in task exited"
                leaf.attempts.append(run)
                leaf.current = None
            again = (
                status_reason != "Dependent Job failed"
                and not stopped
                and len(leaf.attempts) < leaf.max_attempts
            )
            again = again and is_retried(leaf, exit_code, reason, status_reason)
            if again:
                leaf.status = "RUNNABLE"
            else:
                leaf.status = "SUCCEEDED" if exit_code == 0 and not stopped else "FAILED"
                leaf.status_reason = (
                    status_reason or leaf.status_reason or "Essential container in task exited"
                )
                leaf.stopped = now
            if leaf.parent is not None:
                self._settle_parent(leaf.parent)
            if (leaf.parent or leaf).status in ENDED:
                self._settle_dependants(leaf.parent or leaf)
            self.changed.notify_all()
            return again

    def _settle_dependants(self, parent: Job) -> None:
        """Let go, or fail, the jobs that wait for one that has ended."""
        for job in [*self.jobs.values()]:
            wanted = [each["jobId"] for each in job.request.get("dependsOn", [])]
            if job.parent is not None or parent.id not in wanted or job.status in ENDED:
                continue
            if parent.status == "FAILED":
                for leaf in job.leaves:
                    self.end_attempt(leaf, None, "", "Dependent Job failed")

    def _advance(self, job: Job, status: str, reason: str = "") -> None:
        if job.status in ENDED:
            return
        job.status, job.status_reason = status, reason
        if status in ("STARTING", "RUNNING") and not job.children and job.current is None:
            job.new_attempt()
        if status == "RUNNING":
            job.started = job.started or self.milliseconds()
            if isinstance(job.current, Attempt):
                job.current.started = job.current.started or self.milliseconds()
                self._logs.create_stream(self.log_group(job), job.current.stream)

    def _settle_parent(self, parent: Job) -> None:
        states = [child.status for child in parent.children]
        main = parent.definition.get("nodeProperties", {}).get("mainNode")
        if main is not None and states[main] in ENDED:
            for child in parent.children:  # the main node's end is the job's
                if child.status not in ENDED and child.id in self._containers:
                    self._containers[child.id].kill("Main node exited")
        if all(state in ENDED for state in states):
            deciding = states if main is None else [states[main]]
            parent.status = "FAILED" if "FAILED" in deciding else "SUCCEEDED"
            parent.stopped = self.milliseconds()
            parent.status_reason = parent.children[main or 0].status_reason
        elif "RUNNING" in states and parent.status != "RUNNING":
            # Batch leaves an array's parent in PENDING while its children run
            parent.status = "PENDING" if main is None else "RUNNING"
            parent.started = parent.started or self.milliseconds()

    def _run(self, leaf: Job) -> None:
        again = True
        while again:
            with self.lock:
                if leaf.status in ENDED or not self.runs:
                    return
                self._advance(leaf, "RUNNING")
                if leaf.parent is not None:
                    self._settle_parent(leaf.parent)
                self.changed.notify_all()
                assert leaf.current is not None
                stream = leaf.current.stream
                try:
                    container = Container(
                        leaf.container,
                        leaf.environment(len(leaf.attempts) + 1),
                        lambda lines, stream=stream: self._logs.put(self.log_group(leaf), stream, lines),  # type: ignore[misc]
                    )
                except OSError as error:
                    again = self.end_attempt(leaf, None, f"CannotStartContainerError: {error}")
                    continue
                self._containers[leaf.id] = container
            timeout = (leaf.request.get("timeout") or leaf.definition.get("timeout") or {}).get(
                "attemptDurationSeconds"
            )
            code, killed = container.run(timeout)
            with self.lock:
                self._containers.pop(leaf.id, None)
            again = self.end_attempt(leaf, code, "", killed)


def _container_of(nodes: dict[str, Any], index: int, count: int) -> dict[str, Any]:
    for node_range in nodes["nodeRangeProperties"]:
        first, separator, last = node_range["targetNodes"].partition(":")
        start = int(first or 0)
        end = (int(last) if last else count - 1) if separator else start
        if start <= index <= end:
            container: dict[str, Any] = node_range["container"]
            return container
    raise ApiError("ClientException", f"no node range covers node {index}")


def _overrides(request: dict[str, Any], leaf: Job) -> dict[str, Any]:
    """Return what the request changes of a container: of a node, what its range says."""
    if leaf.parent is None or "nodeOverrides" not in request:
        found: dict[str, Any] = request.get("containerOverrides", {})
        return found
    for each in request["nodeOverrides"].get("nodePropertyOverrides", []):
        first, separator, last = each["targetNodes"].partition(":")
        end = int(last) if last else len(leaf.parent.children) - 1
        if int(first or 0) <= (leaf.index or 0) <= (end if separator else int(first)):
            changed: dict[str, Any] = each.get("containerOverrides", {})
            return changed
    return {}
