"""Training jobs as the service describes them. Times are seconds since the epoch."""

from __future__ import annotations

import time
from typing import Any

from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import FLAGS, selected
from shunter.schedulers.sagemaker_local_scheduler.job_status import TERMINAL
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor.recovery import current_state

#: Members of a request that the service omits from its description.
NOT_DESCRIBED = frozenset({"SessionChainingConfig", "Tags"})


def document_of(job: TrainingJob) -> dict[str, Any]:
    """Return what is kept of a job's request, or {}."""
    return job.read_request() or {}


def describe(job: TrainingJob, state: dict[str, Any]) -> dict[str, Any]:
    """Return a job as DescribeTrainingJob does."""
    document = document_of(job)
    request = {key: value for key, value in document["request"].items() if key not in NOT_DESCRIBED}
    answer: dict[str, Any] = {
        **_with_defaults(request),
        "TrainingJobArn": document["arn"],
        "TrainingJobStatus": state["status"],
        "SecondaryStatus": state["secondary"],
        "SecondaryStatusTransitions": state["transitions"],
        "CreationTime": state["created_at"],
        "LastModifiedTime": state["modified_at"],
        "ModelArtifacts": {"S3ModelArtifacts": state["artifacts"]},
        "ProfilingStatus": "Disabled",  # whatever was asked for: nothing is profiled here
    }
    optional = {
        "FailureReason": state["failure_reason"],
        "TrainingStartTime": state["training_start"],
        "TrainingEndTime": state["training_end"],
        "FinalMetricDataList": state["metrics"],
        "WarmPoolStatus": warm_pool(request, state),
    }
    answer.update({key: value for key, value in optional.items() if value})
    if state["training_start"] is not None:
        seconds = state["training_seconds"]
        if state.get("attempt_start") and state["status"] not in TERMINAL:
            seconds += time.time() - state["attempt_start"]
        answer["TrainingTimeInSeconds"] = max(1, round(seconds))
        if state["status"] in TERMINAL:
            answer["BillableTimeInSeconds"] = max(1, round(seconds))
    return answer


def _with_defaults(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request in which omitted members have the service's defaults, as far as it shows them."""
    algorithm = {"EnableSageMakerMetricsTimeSeries": False, **request["AlgorithmSpecification"]}
    output = {"KmsKeyId": "", "CompressionType": "GZIP", **request["OutputDataConfig"]}
    filled = {**request, "AlgorithmSpecification": algorithm, "OutputDataConfig": output}
    if request.get("InputDataConfig"):
        plain = {"CompressionType": "None", "RecordWrapperType": "None"}
        filled["InputDataConfig"] = [{**plain, **channel} for channel in request["InputDataConfig"]]
    if "InstancePreferences" in request["ResourceConfig"]:
        # this machine has capacity for the first
        chosen = selected(request["ResourceConfig"])
        filled["ResourceConfig"] = {
            **request["ResourceConfig"],
            "SelectedInstanceType": chosen["InstanceType"],
            "SelectedInstanceCount": chosen["InstanceCount"],
        }
    return {**dict.fromkeys(FLAGS, False), **filled}


def warm_pool(request: dict[str, Any], state: dict[str, Any]) -> dict[str, Any] | None:
    """Return the state of a job's warm pool if one was asked for: here nothing is kept after the end."""
    if not request.get("ResourceConfig", {}).get("KeepAlivePeriodInSeconds"):
        return None
    if state["status"] not in TERMINAL:
        return {"Status": "InUse"}
    return {"Status": "Terminated", "ResourceRetainedBillableTimeInSeconds": 0}


def summary(job: TrainingJob) -> dict[str, Any] | None:
    """Return a job as ListTrainingJobs does; None if it has just been deleted."""
    state = current_state(job)
    document = document_of(job)
    if state is None or not document:
        return None
    request = document["request"]
    optional = {
        "TrainingEndTime": state["training_end"],
        "WarmPoolStatus": warm_pool(request, state),
        "TrainingPlanArn": request.get("ResourceConfig", {}).get("TrainingPlanArn"),
    }
    return {
        "TrainingJobName": job.name,
        "TrainingJobArn": document["arn"],
        "CreationTime": state["created_at"],
        "LastModifiedTime": state["modified_at"],
        "TrainingJobStatus": state["status"],
        "SecondaryStatus": state["secondary"],
        **{key: value for key, value in optional.items() if value is not None},
    }


def tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    """Return tags as the service writes them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]
