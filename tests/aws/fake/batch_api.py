"""The operations of AWS Batch over `Batch`."""

from __future__ import annotations

import re
from typing import Any

from tests.aws.fake.batch import Batch
from tests.aws.fake.jobs import Job, arn
from tests.aws.fake.service_jobs import ServiceJob, ServiceJobs
from tests.aws.fake.wire import ApiError

Params = dict[str, Any]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_SHARE = re.compile(r"[A-Za-z0-9]{1,255}\*?")


def _refuse(message: str) -> ApiError:
    return ApiError("ClientException", f"Error executing request, Exception : {message}")


class BatchApi:
    """One method for each operation."""

    def __init__(self, batch: Batch, services: ServiceJobs) -> None:
        self._batch = batch
        self._services = services

    # ---- definitions

    def register_job_definition(self, params: Params) -> Params:
        name = params["jobDefinitionName"]
        if not _NAME.fullmatch(name):
            raise _refuse(f"Job definition name should match valid pattern: {name}")
        _check_definition(params)
        with self._batch.lock:
            revisions = self._batch.definitions.setdefault(name, [])
            revision = len(revisions) + 1
            definition_arn = arn("job-definition", f"{name}:{revision}")
            shown = params | {"jobDefinitionArn": definition_arn, "revision": revision, "status": "ACTIVE"}
            revisions.append(shown)
        return {"jobDefinitionName": name, "jobDefinitionArn": definition_arn, "revision": revision}

    def deregister_job_definition(self, params: Params) -> Params:
        self._definition(params["jobDefinition"])["status"] = "INACTIVE"
        return {}

    def describe_job_definitions(self, params: Params) -> Params:
        with self._batch.lock:
            if "jobDefinitions" in params:
                wanted = params["jobDefinitions"]
                found = [d for ds in self._batch.definitions.values() for d in ds if _is_named(d, wanted)]
            elif "jobDefinitionName" in params:
                found = list(self._batch.definitions.get(params["jobDefinitionName"], []))
            else:
                found = [d for ds in self._batch.definitions.values() for d in ds]
            status = params.get("status")
            found = [d for d in found if status in (None, d["status"])]
        return _page("jobDefinitions", found, params, 100)

    # ---- queues

    def describe_job_queues(self, params: Params) -> Params:
        wanted = params.get("jobQueues")
        found = [
            q
            for q in self._batch.queues.values()
            if wanted is None or q["jobQueueName"] in wanted or q["jobQueueArn"] in wanted
        ]
        return _page("jobQueues", found, params, 100)

    def get_job_queue_snapshot(self, params: Params) -> Params:
        queue = self._queue(params["jobQueue"])["jobQueueArn"]
        with self._batch.lock:
            jobs = [
                job for job in self._batch.jobs.values() if job.queue == queue and job.status == "RUNNABLE"
            ]
        front = [{"jobArn": arn("job", job.id), "earliestTimeAtPosition": job.created} for job in jobs[:100]]
        return {"frontOfQueue": {"jobs": front, "lastUpdatedAt": 1}}

    def describe_compute_environments(self, params: Params) -> Params:
        wanted = params.get("computeEnvironments")
        found = [
            e
            for e in self._batch.environments.values()
            if wanted is None or e["computeEnvironmentName"] in wanted or e["computeEnvironmentArn"] in wanted
        ]
        return _page("computeEnvironments", found, params, 100)

    # ---- jobs

    def submit_job(self, params: Params) -> Params:
        if not _NAME.fullmatch(params["jobName"]):
            raise _refuse(f"Job name should match valid pattern: {params['jobName']}")
        queue = self._queue(params["jobQueue"])
        if queue["state"] != "ENABLED":
            raise _refuse(f"JobQueue {queue['jobQueueArn']} is not enabled")
        share = params.get("shareIdentifier")
        if queue.get("schedulingPolicyArn") and not share:
            raise _refuse("Share identifier is required for fair share job queues")
        if share and not queue.get("schedulingPolicyArn"):
            raise _refuse("shareIdentifier cannot be specified for a FIFO job queue")
        if share and not _SHARE.fullmatch(share):
            raise _refuse(f"Share identifier {share} is not valid")
        definition = self._definition(params["jobDefinition"])
        if definition["status"] != "ACTIVE":
            raise _refuse(f"JobDefinition {definition['jobDefinitionArn']} is not active")
        size = params.get("arrayProperties", {}).get("size")
        if size is not None and (definition["type"] == "multinode" or not 2 <= size <= 10_000):
            raise _refuse("arrayProperties: size must be from 2 to 10000, of a container job")
        _check_timeout_and_attempts(params)
        job = self._batch.submit(definition, queue, params)
        return {"jobName": job.name, "jobId": job.id, "jobArn": arn("job", job.id)}

    def describe_jobs(self, params: Params) -> Params:
        ids = params["jobs"]
        if len(ids) > 100:
            raise _refuse("jobs: at most 100 can be described at once")
        jobs = [self._visible(job_id) for job_id in dict.fromkeys(ids)]
        return {"jobs": [job.detail() for job in jobs if job is not None]}

    def list_jobs(self, params: Params) -> Params:
        chosen = [key for key in ("jobQueue", "arrayJobId", "multiNodeJobId") if key in params]
        if len(chosen) != 1:
            raise _refuse("exactly one of jobQueue, arrayJobId and multiNodeJobId must be given")
        filters = params.get("filters", [])
        if len(filters) > 1:
            raise _refuse("only one filter can be used at a time")
        with self._batch.lock:
            if chosen == ["jobQueue"]:
                queue = self._queue(params["jobQueue"])["jobQueueArn"]
                jobs = [j for j in self._batch.jobs.values() if j.queue == queue and j.parent is None]
            else:
                parent = self._visible(params[chosen[0]])
                jobs = [] if parent is None else parent.children
            now = self._batch.now()
            jobs = [job for job in jobs if job.visible_at <= now]
            if filters and chosen == ["jobQueue"]:
                jobs = [job for job in jobs if _fits(job, filters[0])]
            else:
                wanted = params.get("jobStatus") or ("RUNNING" if chosen == ["jobQueue"] else None)
                jobs = [job for job in jobs if wanted in (None, job.status)]
            jobs = [job for _, job in sorted(enumerate(jobs), key=lambda e: (-e[1].created, -e[0]))]
            if chosen != ["jobQueue"]:
                jobs.sort(key=lambda job: job.index or 0)
            limit = 100 if filters else 1000
            return _page("jobSummaryList", jobs, params, limit, Job.summary)

    def terminate_job(self, params: Params) -> Params:
        job = self._visible(params["jobId"])
        if job is not None:
            self._batch.stop(job, params["reason"], terminate=True)
        return {}

    def terminate_jobs(self, params: Params) -> Params:
        if len(params["jobs"]) > 50:
            raise _refuse("jobs: at most 50 can be terminated at once")
        malformed = [job_id for job_id in params["jobs"] if job_id in self._batch.unstoppable]
        for job_id in params["jobs"]:
            if job_id not in malformed:
                self.terminate_job({"jobId": job_id, "reason": params["reason"]})
        errors = [
            {"job": job_id, "code": "ClientException", "message": "it will not"} for job_id in malformed
        ]
        return {"successful": [i for i in params["jobs"] if i not in malformed], "errors": errors}

    def cancel_job(self, params: Params) -> Params:
        job = self._visible(params["jobId"])
        if job is not None:
            self._batch.stop(job, params["reason"], terminate=False)
        return {}

    # ---- service jobs

    def submit_service_job(self, params: Params) -> Params:
        if not _NAME.fullmatch(params["jobName"]):
            raise _refuse(f"Job name should match valid pattern: {params['jobName']}")
        queue = self._queue(params["jobQueue"])
        if queue.get("jobQueueType") != "SAGEMAKER_TRAINING":
            raise _refuse(f"JobQueue {queue['jobQueueArn']} is not of the type SAGEMAKER_TRAINING")
        _check_service_job(params, queue)
        job = self._services.submit(queue["jobQueueArn"], params)
        return {"jobName": job.name, "jobId": job.id, "jobArn": job.arn}

    def describe_service_job(self, params: Params) -> Params:
        return self._service_job(params["jobId"]).detail()

    def list_service_jobs(self, params: Params) -> Params:
        filters = params.get("filters", [])
        if len(filters) > 1:
            raise _refuse("only one filter can be used at a time")
        if "jobQueue" not in params:
            raise _refuse("jobQueue must be given")
        queue = self._queue(params["jobQueue"])["jobQueueArn"]
        now = self._batch.now()
        jobs = [job for job in self._services.jobs.values() if job.queue == queue and job.visible_at <= now]
        if filters:
            jobs = [job for job in jobs if _fits(job, filters[0])]
        else:
            jobs = [job for job in jobs if job.status == params.get("jobStatus", "RUNNING")]
        jobs.reverse()  # the newest first
        return _page("jobSummaryList", jobs, params, 100, ServiceJob.summary)

    def terminate_service_job(self, params: Params) -> Params:
        self._services.terminate(self._service_job(params["jobId"]), params["reason"])
        return {}

    # ---- tags

    def list_tags_for_resource(self, params: Params) -> Params:
        return {"tags": dict(self._tags(params["resourceArn"]))}

    def tag_resource(self, params: Params) -> Params:
        self._tags(params["resourceArn"]).update(params["tags"])
        return {}

    # ---- parts

    def _visible(self, job_id: str) -> Job | None:
        job = self._batch.jobs.get(job_id.rpartition("/")[2] if job_id.startswith("arn:") else job_id)
        return job if job is not None and job.visible_at <= self._batch.now() else None

    def _service_job(self, text: str) -> ServiceJob:
        job = self._services.jobs.get(text.rpartition("/")[2])
        if job is None or job.visible_at > self._batch.now():
            raise _refuse(f"Service job {text} does not exist")
        return job

    def _tags(self, resource: str) -> dict[str, str]:
        kind, _, name = resource.rpartition(":batch:")[2].partition(":")[2].partition(":")[2].partition("/")
        if kind == "job" and name in self._batch.jobs:
            return dict_of(self._batch.jobs[name].request, "tags")
        if kind == "service-job" and name in self._services.jobs:
            return dict_of(self._services.jobs[name].request, "tags")
        if kind == "job-definition":
            return dict_of(self._definition(resource), "tags")
        if kind == "job-queue" and name in self._batch.queues:
            return dict_of(self._batch.queues[name], "tags")
        raise _refuse(f"{resource} does not exist")

    def _queue(self, text: str) -> dict[str, Any]:
        for queue in self._batch.queues.values():
            if text in (queue["jobQueueName"], queue["jobQueueArn"]):
                return queue
        raise _refuse(f"JobQueue {text} not found")

    def _definition(self, text: str) -> dict[str, Any]:
        """Find a definition by its ARN, ``name:revision``, or ``name`` for the newest active one."""
        name, _, revision = text.rpartition("/")[2].partition(":")
        revisions = self._batch.definitions.get(name, [])
        if revision:
            found = [d for d in revisions if str(d["revision"]) == revision]
        else:
            found = [d for d in revisions if d["status"] == "ACTIVE"]
        if not found:
            raise _refuse(f"JobDefinition {text} does not exist")
        return found[-1]


def dict_of(owner: dict[str, Any], key: str) -> dict[str, str]:
    found: dict[str, str] = owner.setdefault(key, {})
    return found


def _is_named(definition: dict[str, Any], wanted: list[str]) -> bool:
    name = definition["jobDefinitionName"]
    names = (name, f"{name}:{definition['revision']}", definition["jobDefinitionArn"])
    return any(text in wanted for text in names)


def _check_service_job(params: Params, queue: dict[str, Any]) -> None:
    share, quota = params.get("shareIdentifier"), params.get("quotaShareName")
    if bool(share) != bool(queue.get("schedulingPolicyArn")):
        raise _refuse("shareIdentifier is for job queues with a fair-share policy, which need one")
    if bool(quota) != bool(queue.get("quotaShares")):
        raise _refuse("quotaShareName is for job queues with quota shares, which need one")
    if quota and quota not in queue["quotaShares"]:
        raise _refuse(f"quota share {quota} does not exist")
    strategy = params.get("retryStrategy", {"attempts": 1})
    if not 1 <= strategy["attempts"] <= 10 or len(strategy.get("evaluateOnExit", [])) > 5:
        raise _refuse("retryStrategy: 1 to 10 attempts, and at most 5 rules")
    if not 0 <= params.get("schedulingPriority", 0) <= 9999:
        raise _refuse("schedulingPriority must be between 0 and 9999")


def _fits(job: Job | ServiceJob, job_filter: dict[str, Any]) -> bool:
    name, values = job_filter["name"], job_filter["values"]
    if name == "JOB_NAME":
        return any(_matches(job.name, value) for value in values)
    if name == "JOB_DEFINITION" and isinstance(job, Job):
        full: str = job.definition["jobDefinitionArn"]
        short = full.rpartition("/")[2]
        return any(_matches(short.partition(":")[0], v) or v in (short, full) for v in values)
    if name == "BEFORE_CREATED_AT":
        return job.created < int(values[0])
    if name == "AFTER_CREATED_AT":
        return job.created > int(values[0])
    if name == "SHARE_IDENTIFIER":
        return any(_matches(job.request.get("shareIdentifier", ""), value) for value in values)
    raise _refuse(f"unknown filter {name}")


def _matches(text: str, pattern: str) -> bool:
    text, pattern = text.lower(), pattern.lower()
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern


def _check_timeout_and_attempts(params: Params) -> None:
    seconds = params.get("timeout", {}).get("attemptDurationSeconds", 60)
    if seconds < 60:
        raise _refuse("attemptDurationSeconds must be at least 60")
    attempts = params.get("retryStrategy", {}).get("attempts", 1)
    if not 1 <= attempts <= 10:
        raise _refuse("attempts must be between 1 and 10")
    if len(params.get("tags", {})) > 50:
        raise _refuse("at most 50 tags")


def _check_definition(params: Params) -> None:
    _check_timeout_and_attempts(params)
    if params["type"] != "multinode":
        if "containerProperties" not in params:
            raise _refuse("containerProperties must be given for a job definition of type container")
        return
    nodes = params.get("nodeProperties")
    if nodes is None:
        raise _refuse("nodeProperties must be given for a job definition of type multinode")
    if not 0 <= nodes["mainNode"] < nodes["numNodes"]:
        raise _refuse("mainNode must be one of the nodes")
    covered: set[int] = set()
    for node_range in nodes["nodeRangeProperties"]:
        first, separator, last = node_range["targetNodes"].partition(":")
        end = (int(last) if last else nodes["numNodes"] - 1) if separator else int(first)
        covered |= set(range(int(first or 0), end + 1))
        if "container" not in node_range:
            raise _refuse(f"container must be given for the nodes {node_range['targetNodes']}")
    if covered != set(range(nodes["numNodes"])) or len(nodes["nodeRangeProperties"]) > 5:
        raise _refuse("node ranges must cover all nodes, and there can be at most 5 of them")


def _page(key: str, items: list[Any], params: Params, limit: int, show: Any = dict) -> Params:
    start = int(params.get("nextToken") or 0)
    end = start + min(params.get("maxResults", limit), limit)
    shown = [show(item) for item in items[start:end]]
    return {key: shown} | ({"nextToken": str(end)} if end < len(items) else {})
