"""Describes a training job: what the supervisor knows of it, with what the service would tell."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from shunter.paths import existing
from shunter.schedulers.api import DescribeAppResponse, ListAppResponse
from shunter.schedulers.aws_sagemaker_scheduler import observe as remote
from shunter.schedulers.sagemaker_local_scheduler import description
from shunter.schedulers.sagemaker_local_scheduler.job_status import TERMINAL
from shunter.schedulers.sagemaker_local_scheduler.training_job import TrainingJob
from shunter.schedulers.supervisor.observe import described
from shunter.specs.status import NONE


def _as_boto(description: dict[str, Any]) -> dict[str, Any]:
    """Return a description with its times as boto3 gives them."""
    times: dict[str, Any] = {
        key: datetime.fromtimestamp(description[key], UTC)
        for key in ("CreationTime", "TrainingStartTime", "TrainingEndTime", "LastModifiedTime")
        if key in description
    }
    return {**description, **times}


def describe(job: TrainingJob, state: dict[str, Any]) -> DescribeAppResponse:
    """Return the supervisor's description of a job with what the service would tell of it."""
    response = described(job, state)
    service = remote.describe(job.name, _as_boto(description.describe(job, state)))
    response.metadata = {**response.metadata, **service.metadata}
    response.results = existing((service.results or "").removeprefix("file://"))
    response.roles = service.roles
    if state["status"] in TERMINAL or response.msg == NONE:
        response.msg = service.msg
    return response


def listed(job: TrainingJob, state: dict[str, Any]) -> ListAppResponse:
    """Return a job as a row of a list."""
    tags = description.tag_list(job.read_tags())
    row = remote.listed({**_as_boto(description.describe(job, state)), "Tags": tags})
    row.submitted_at, row.ended_at = state["created_at"], state["ended_at"]
    return row
