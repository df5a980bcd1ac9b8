"""Service jobs of AWS Batch in memory: SageMaker training jobs that wait in a queue. A test moves them on.

Training jobs are made by whatever a test hands in as ``create`` (a SageMaker client), under the names that
Batch makes of the request's: ``AWSBatch``, the name, and an id of the attempt.
"""

from __future__ import annotations

import fnmatch
import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.aws.fake.jobs import ENDED, arn
from tests.aws.fake.wire import ACCOUNT, ApiError

STATES = ("SUBMITTED", "PENDING", "RUNNABLE", "SCHEDULED", "STARTING", "RUNNING", "SUCCEEDED", "FAILED")


@dataclass
class ServiceJob:
    """One job."""

    id: str
    name: str
    queue: str
    request: dict[str, Any]
    created: int
    visible_at: float = 0.0
    status: str = "SUBMITTED"
    status_reason: str = ""
    scheduled: int | None = None
    started: int | None = None
    stopped: int | None = None
    is_terminated: bool = False
    attempts: list[dict[str, Any]] = field(default_factory=list)
    latest: str = ""

    @property
    def arn(self) -> str:
        return arn("service-job", self.id)

    @property
    def payload(self) -> dict[str, Any]:
        payload: dict[str, Any] = json.loads(self.request["serviceRequestPayload"])
        return payload

    def summary(self) -> dict[str, Any]:
        """Return what ListServiceJobs says."""
        optional = {
            "statusReason": self.status_reason,
            "scheduledAt": self.scheduled,
            "startedAt": self.started,
            "stoppedAt": self.stopped,
            "isTerminated": self.is_terminated,
            "latestAttempt": _attempt(self.latest) if self.latest else None,
            "shareIdentifier": self.request.get("shareIdentifier"),
            "quotaShareName": self.request.get("quotaShareName"),
        }
        return {
            "jobArn": self.arn,
            "jobId": self.id,
            "jobName": self.name,
            "createdAt": self.created,
            "serviceJobType": "SAGEMAKER_TRAINING",
            "status": self.status,
            **{key: value for key, value in optional.items() if value},
        }

    def detail(self) -> dict[str, Any]:
        """Return what DescribeServiceJob says."""
        copied = ("schedulingPriority", "timeoutConfig", "preemptionConfiguration", "serviceRequestPayload")
        return {
            **self.summary(),
            "startedAt": self.started or 0,
            "jobQueue": self.queue,
            "attempts": self.attempts,
            "retryStrategy": self.request.get("retryStrategy", {"attempts": 1}),
            "tags": self.request.get("tags", {}),
            **{key: self.request[key] for key in copied if key in self.request},
        }


def _attempt(training_arn: str, **more: Any) -> dict[str, Any]:
    return {"serviceResourceId": {"name": "TrainingJobArn", "value": training_arn}, **more}


class ServiceJobs:
    """The jobs of all queues.

    Attributes:
        create: makes a training job of a CreateTrainingJob request, and returns its ARN.
        stop: stops a training job by its name.
        visible_after: seconds until a new job can be listed or described.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.lock = threading.RLock()
        self.jobs: dict[str, ServiceJob] = {}
        self.visible_after = 0.0
        self.create: Callable[[dict[str, Any]], str] | None = None
        self.stop: Callable[[str], None] | None = None
        self._by_token: dict[str, ServiceJob] = {}

    def _milliseconds(self) -> int:
        return int(self._now() * 1000)

    def submit(self, queue_arn: str, request: dict[str, Any]) -> ServiceJob:
        """Make a job. The same request with the same token is refused, as the API reference has it."""
        with self.lock:
            token = request.get("clientToken", "")
            if token and token in self._by_token:
                raise ApiError(
                    "ClientException", f"A request with the client token {token} was received before"
                )
            job = ServiceJob(
                str(uuid.uuid4()), request["jobName"], queue_arn, dict(request), self._milliseconds(),
                self._now() + self.visible_after,
            )  # fmt: skip
            self.jobs[job.id] = job
            if token:
                self._by_token[token] = job
            return job

    def of_name(self, name: str) -> ServiceJob:
        return next(job for job in self.jobs.values() if job.name == name)

    # ---- what a test does

    def advance(self, job: ServiceJob, status: str, reason: str = "") -> None:
        """Move a job to a state in which it has not ended; SCHEDULED begins an attempt."""
        with self.lock:
            assert job.status not in ENDED, job
            job.status, job.status_reason = status, reason
            if status == "SCHEDULED":
                job.scheduled = self._milliseconds()
                payload = job.payload
                name = f"AWSBatch{payload['TrainingJobName'][:23]}{uuid.uuid4().hex}"
                made = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:training-job/{name}"
                job.latest = self.create({**payload, "TrainingJobName": name}) if self.create else made
            if status == "RUNNING":
                job.started = job.started or self._milliseconds()

    def end_attempt(self, job: ServiceJob, reason: str, *, succeeded: bool = False) -> None:
        """End the current attempt; another one follows where the retry strategy says so."""
        with self.lock:
            now = self._milliseconds()
            job.attempts.append(
                _attempt(job.latest, startedAt=job.started or now, stoppedAt=now, statusReason=reason)
            )
            job.status_reason = reason
            if not succeeded and not job.is_terminated and self._is_retried(job, reason):
                job.status = "RUNNABLE"
                return
            job.status = "SUCCEEDED" if succeeded else "FAILED"
            job.stopped = now

    @staticmethod
    def _is_retried(job: ServiceJob, reason: str) -> bool:
        strategy = job.request.get("retryStrategy", {"attempts": 1})
        if len(job.attempts) >= strategy["attempts"]:
            return False
        for rule in strategy.get("evaluateOnExit", []):
            if fnmatch.fnmatchcase(reason, rule.get("onStatusReason", "*")):
                return bool(rule["action"] == "RETRY")
        return True

    def terminate(self, job: ServiceJob, reason: str) -> None:
        """End a job: at once while it waits, and when its training job has stopped."""
        with self.lock:
            if job.status in ENDED:
                return
            job.is_terminated = True
            job.status_reason = reason
            if job.status in ("SUBMITTED", "PENDING", "RUNNABLE"):
                job.status, job.stopped = "FAILED", self._milliseconds()
            elif self.stop is not None:
                self.stop(job.latest.rpartition("/")[2])
