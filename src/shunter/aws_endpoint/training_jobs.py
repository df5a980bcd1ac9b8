"""SageMaker's operations on the training jobs of this machine. Parameters and answers are those of boto3.

Times in answers are seconds since the epoch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from shunter.errors import ShunterError
from shunter.schedulers.sagemaker_local_scheduler.description import (
    describe,
    document_of,
    summary,
    tag_list,
    warm_pool,
)
from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings, region_of_environment, start_job
from shunter.schedulers.sagemaker_local_scheduler.job_status import TERMINAL
from shunter.schedulers.sagemaker_local_scheduler.request_validation import (
    ApiError,
    check,
    check_request,
    invalid,
)
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor import recovery
from shunter.schedulers.supervisor.documents import is_full_disk

_SORT = {"Name": "TrainingJobName", "CreationTime": "CreationTime", "Status": "TrainingJobStatus"}
MOST_TAGS = 50


def create_training_job(
    params: dict[str, Any], region: str = "", settings: Settings | None = None
) -> dict[str, Any]:
    """CreateTrainingJob. The job is under way when this returns."""
    check_request(params)
    region = region or region_of_environment()
    try:
        job = start_job(params, region=region, settings=settings)
    except FileExistsError:
        document = document_of(TrainingJob.of(params["TrainingJobName"]))
        why = (
            "Training job names must be unique within an AWS account and region, and a training job"
            " with this name already exists"
        )
        if document.get("region") != region:
            why = "this machine keeps one training job of a name, and has one in another region"
        raise ApiError("ResourceInUse", f"{why} ({document.get('arn', '')})") from None
    except ShunterError as error:
        if is_full_disk(error):  # another attempt would fail too
            raise ApiError("ResourceLimitExceeded", str(error)) from error
        raise ApiError("InternalFailure", str(error), 500) from error
    return {"TrainingJobArn": document_of(job)["arn"]}


def describe_training_job(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """DescribeTrainingJob."""
    check("DescribeTrainingJob", params)
    job, state = _existing(params["TrainingJobName"], region)
    return describe(job, state)


def list_training_jobs(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """ListTrainingJobs."""
    check("ListTrainingJobs", params)
    rows = [row for row in map(summary, jobs_of(region)) if row is not None and _is_wanted(row, params)]
    rows.sort(key=lambda row: row["TrainingJobName"])
    is_descending = params.get("SortOrder", "Descending") == "Descending"
    key = _SORT[params.get("SortBy", "CreationTime")]
    rows.sort(key=lambda row: row[key], reverse=is_descending)
    # the latest job comes first, so one that was created since the first page would shift the others
    start, _, moment = (params.get("NextToken") or f"0@{time.time_ns()}").partition("@")
    if not is_number(moment):
        raise invalid("the NextToken is invalid")
    rows = [row for row in rows if row["CreationTime"] * 1_000_000_000 <= int(moment)]
    page, token = page_of(rows, start, params.get("MaxResults", 10))
    return {"TrainingJobSummaries": page, **({"NextToken": f"{token}@{moment}"} if token else {})}


def stop_training_job(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """StopTrainingJob. Does not wait for the end."""
    check("StopTrainingJob", params)
    job, state = _existing(params["TrainingJobName"], region)
    if state["status"] in TERMINAL:
        raise invalid(f"The request was rejected because the training job is in status {state['status']}.")
    recovery.stop(job, state, by=os.getuid())
    return {}


def delete_training_job(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """DeleteTrainingJob."""
    check("DeleteTrainingJob", params)
    job, state = _existing(params["TrainingJobName"], region)
    if state["status"] not in TERMINAL:
        raise ApiError("ResourceInUse", f"The training job is in status {state['status']}.")
    try:
        job.remove()
    except ShunterError as error:
        raise ApiError("InternalFailure", error.message, 500) from error
    return {}


def update_training_job(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """UpdateTrainingJob: settings that are kept with the job; nothing here acts on them."""
    check("UpdateTrainingJob", params)
    job, state = _existing(params["TrainingJobName"], region)
    with job.changing(job.REQUEST) as document:
        request = document["request"]
        _check_update(params, request, state)
        for name in ("ProfilerConfig", "ResourceConfig", "RemoteDebugConfig"):
            if name in params:
                request[name] = {**request.get(name, {}), **params[name]}
        if "ProfilerRuleConfigurations" in params:
            rules = [*request.get("ProfilerRuleConfigurations", ()), *params["ProfilerRuleConfigurations"]]
            by_name = {rule["RuleConfigurationName"]: rule for rule in rules}
            request["ProfilerRuleConfigurations"] = list(by_name.values())
    return {"TrainingJobArn": document["arn"]}


def add_tags(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """AddTags."""
    check("AddTags", params)
    job = _job_of_arn(params["ResourceArn"], region)
    with job.changing("tags.json") as tags:
        tags.update({tag["Key"]: tag["Value"] for tag in params["Tags"]})
        if len(tags) > MOST_TAGS:
            raise invalid(f"a training job has at most {MOST_TAGS} tags")
    return {"Tags": tag_list(tags)}


def delete_tags(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """DeleteTags."""
    check("DeleteTags", params)
    with _job_of_arn(params["ResourceArn"], region).changing("tags.json") as tags:
        for key in params["TagKeys"]:
            tags.pop(key, None)
    return {}


def list_tags(params: dict[str, Any], region: str = "") -> dict[str, Any]:
    """ListTags."""
    check("ListTags", params)
    rows = tag_list(_job_of_arn(params["ResourceArn"], region).read_tags())
    page, token = page_of(rows, params.get("NextToken"), params.get("MaxResults", 50))
    return {"Tags": page, **({"NextToken": token} if token else {})}


def _check_update(params: dict[str, Any], request: dict[str, Any], state: dict[str, Any]) -> None:
    """Refuse a change that a job does not accept in its state, according to the service's documentation."""
    if "ResourceConfig" in params:
        pool = warm_pool(request, state)
        if pool is None or pool["Status"] == "Terminated":
            found = "none" if pool is None else pool["Status"]
            raise invalid(f"the training job's warm pool cannot be changed: its status is {found}")
    elif state["status"] in TERMINAL:
        raise invalid(f"The request was rejected because the training job is in status {state['status']}.")
    if "RemoteDebugConfig" in params and state["secondary"] not in ("Downloading", "Training"):
        raise invalid(
            "RemoteDebugConfig can be changed while the training job is Downloading or Training, "
            f"and it is {state['secondary']}"
        )


def _existing(name: str, region: str) -> tuple[TrainingJob, dict[str, Any]]:
    job = find_job(name, region)
    state = None if job is None else recovery.current_state(job)
    if job is None or state is None:
        raise not_found()
    return job, state


def _job_of_arn(arn: str, region: str) -> TrainingJob:
    name = arn.rpartition("/")[2]
    job = find_job(name, region) if ":training-job/" in arn else None
    if job is None or document_of(job).get("arn") != arn:
        raise not_found()
    return job


def _is_wanted(row: dict[str, Any], params: dict[str, Any]) -> bool:
    created, modified = row["CreationTime"], row["LastModifiedTime"]
    checks: dict[str, Callable[[Any], bool]] = {
        "NameContains": lambda wanted: wanted in row["TrainingJobName"],
        "StatusEquals": lambda wanted: wanted == row["TrainingJobStatus"],
        "CreationTimeAfter": lambda wanted: created > _seconds_of(wanted),
        "CreationTimeBefore": lambda wanted: created < _seconds_of(wanted),
        "LastModifiedTimeAfter": lambda wanted: modified > _seconds_of(wanted),
        "LastModifiedTimeBefore": lambda wanted: modified < _seconds_of(wanted),
        "WarmPoolStatusEquals": lambda wanted: wanted == row.get("WarmPoolStatus", {}).get("Status"),
        "TrainingPlanArnEquals": lambda wanted: wanted == row.get("TrainingPlanArn"),
    }
    return all(check(params[name]) for name, check in checks.items() if name in params)


def _seconds_of(moment: Any) -> float:
    """Return a time in seconds since the epoch: a number as it is, or what has a ``timestamp``."""
    return float(moment.timestamp() if hasattr(moment, "timestamp") else moment)


# ---- finding jobs, and answers in pages


def jobs_of(region: str) -> Iterator[TrainingJob]:
    """Yield the jobs of a region; of all with ""."""
    return (job for job in TrainingJob.all() if _is_in(job, region))


def find_job(name: str, region: str) -> TrainingJob | None:
    """Return a job of a region, or of any with "": elsewhere it is not known."""
    job = TrainingJob.find(name)
    return job if job is not None and _is_in(job, region) else None


def _is_in(job: TrainingJob, region: str) -> bool:
    return not region or document_of(job).get("region") == region


def page_of(rows: list[dict[str, Any]], token: str | None, size: int) -> tuple[list[dict[str, Any]], str]:
    """Return a page of rows, and the token of the next one, "" if there is none.

    Raises:
        ApiError: the token is invalid.
    """
    if not is_number(token or "0"):
        raise invalid("the NextToken is invalid")
    start = int(token or "0")
    end = start + size
    return rows[start:end], str(end) if end < len(rows) else ""


def is_number(text: str) -> bool:
    """Tell whether a part of a token is a number of reasonable length."""
    return text.isascii() and text.isdecimal() and len(text) < 60


def not_found() -> ApiError:
    """Return the error for a job that does not exist; the service has no other for it."""
    return ApiError("ValidationException", "Requested resource not found.")
