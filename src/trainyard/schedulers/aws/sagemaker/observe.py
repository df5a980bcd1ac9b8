"""What SageMaker says of a job, as states of a job and its replicas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainyard.schedulers.aws.sagemaker import names
from trainyard.schedulers.aws.sagemaker.container import ROLE_NAME, Recovered, read_command
from trainyard.schedulers.aws.sagemaker.reasons import STATE_OF_REASON, exit_code_of, message_of, reason_of
from trainyard.schedulers.aws.sagemaker.training_script import as_arguments
from trainyard.schedulers.base import DescribeAppResponse, ListAppResponse
from trainyard.specs.app import Role
from trainyard.specs.named_resources_aws import INSTANCE_TYPE
from trainyard.specs.resources import Resource
from trainyard.specs.status import AppState, ReplicaStatus, RoleStatus, is_terminal

UNNAMED_ROLE = "algo"


def layout(job: Mapping[str, Any]) -> list[tuple[str, int, str]]:
    """Return role, index and host of every replica.

    Hosts are ``algo-1``, ``algo-2``, .... Which of them are in which group SageMaker tells in the containers
    only; they are taken to come in the order of the groups.
    """
    config = _resources(job)
    groups = config.get("InstanceGroups") or []
    only = (job.get("Environment") or {}).get(ROLE_NAME)
    if only or not groups:
        count = sum(group["InstanceCount"] for group in groups) if groups else config.get("InstanceCount", 1)
        roles = [only or UNNAMED_ROLE] * count
    else:
        roles = [group["InstanceGroupName"] for group in groups for _ in range(group["InstanceCount"])]
    places, seen = [], dict.fromkeys(roles, 0)
    for number, role in enumerate(roles, 1):
        places.append((role, seen[role], f"algo-{number}"))
        seen[role] += 1
    return places


def _resources(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's ``ResourceConfig``; of preferences the one that was selected, until then the first."""
    config = dict(job.get("ResourceConfig") or {})
    preferences = config.get("InstancePreferences")
    if preferences:
        first = preferences[0]
        config["InstanceType"] = config.get("SelectedInstanceType") or first.get("InstanceType", "")
        count = config.get("InstanceCount") or first.get("InstanceCount", 1)
        config["InstanceCount"] = config.get("SelectedInstanceCount") or count
    return config


def describe(app_id: str, job: Mapping[str, Any]) -> DescribeAppResponse:
    """Return a job as SageMaker describes it."""
    state = STATE_OF_REASON[reason_of(job)]
    facts = _facts(job)
    return DescribeAppResponse(
        app_id,
        state,
        num_restarts=_restarts(job),
        msg=message_of(job),
        ui_url=names.console_url(job.get("TrainingJobArn", "")),
        metadata=facts,
        roles_statuses=_statuses(job, state),
        roles=_roles(job),
        results=facts.get("output"),
    )


def listed(job: Mapping[str, Any]) -> ListAppResponse:
    """Return a job as SageMaker lists it."""
    name = job["TrainingJobName"]
    tags = {tag["Key"]: tag["Value"] for tag in job.get("Tags") or []}
    row = ListAppResponse(
        name,
        STATE_OF_REASON[reason_of(job)],
        name=tags.get(names.TAG_APP_NAME) or name.rpartition("-")[0] or name,
    )
    row.submitted_at = _seconds(job.get("CreationTime"))
    row.ended_at = _seconds(job.get("TrainingEndTime"))
    return row


def _restarts(job: Mapping[str, Any]) -> int:
    """Return how often the job began anew, after spot instances were taken back or a fault of the service."""
    transitions = job.get("SecondaryStatusTransitions") or []
    return sum(each.get("Status") in ("Interrupted", "Restarting") for each in transitions)


def _statuses(job: Mapping[str, Any], state: AppState) -> list[RoleStatus]:
    places = layout(job)
    started = _seconds(job.get("TrainingStartTime"))
    ended = _seconds(job.get("TrainingEndTime")) if is_terminal(state) else None
    code = exit_code_of(job) if is_terminal(state) else None
    # of several instances SageMaker does not say which one failed
    known = code if code == 0 or len(places) == 1 else None
    roles: dict[str, list[ReplicaStatus]] = {}
    for role, index, host in places:
        status = ReplicaStatus(
            index,
            state,
            role,
            host,
            exit_code=known,
            started_at=started,
            ended_at=ended,
            restarts=_restarts(job),
        )
        roles.setdefault(role, []).append(status)
    return [RoleStatus(role, replicas) for role, replicas in roles.items()]


def _facts(job: Mapping[str, Any]) -> dict[str, str]:
    """Return what else there is to know of a job, as texts."""
    output = (job.get("OutputDataConfig") or {}).get("S3OutputPath", "").rstrip("/")
    facts: dict[str, Any] = {
        "arn": job.get("TrainingJobArn"),
        "secondary_status": job.get("SecondaryStatus"),
        "transitions": " -> ".join(
            str(each.get("Status")) for each in job.get("SecondaryStatusTransitions") or []
        ),
        "model_artifacts": (job.get("ModelArtifacts") or {}).get("S3ModelArtifacts"),
        "output": f"{output}/{job.get('TrainingJobName')}/output" if output else None,
        "checkpoints": (job.get("CheckpointConfig") or {}).get("S3Uri"),
        "tensorboard": (job.get("TensorBoardOutputConfig") or {}).get("S3OutputPath"),
        "experiment": _joined(job.get("ExperimentConfig"), "ExperimentName", "TrialName", "RunName"),
        "mlflow": _joined(job.get("MlflowConfig"), "MlflowExperimentName", "MlflowRunName"),
        "mlflow_run": (job.get("MlflowDetails") or {}).get("MlflowRunId"),
        "model_package": job.get("OutputModelPackageArn")
        or (job.get("ModelPackageConfig") or {}).get("ModelPackageGroupArn"),
        "training_plan": (job.get("ResourceConfig") or {}).get("TrainingPlanArn"),
        "selected_instance_type": (job.get("ResourceConfig") or {}).get("SelectedInstanceType"),
        "training_seconds": job.get("TrainingTimeInSeconds"),
        "billable_seconds": job.get("BillableTimeInSeconds"),
    }
    for kind in ("DebugRuleEvaluationStatuses", "ProfilerRuleEvaluationStatuses"):
        for rule in job.get(kind) or []:
            facts[f"rule:{rule.get('RuleConfigurationName')}"] = rule.get("RuleEvaluationStatus")
    for metric in job.get("FinalMetricDataList") or []:
        facts[f"metric:{metric.get('MetricName')}"] = metric.get("Value")
    return {key: str(value) for key, value in facts.items() if value not in (None, "")}


def _joined(config: Mapping[str, Any] | None, *members: str) -> str | None:
    """Return members of an object as one text: an experiment, its trial and its run."""
    return "/".join(str(config[member]) for member in members if config.get(member)) if config else None


def _roles(job: Mapping[str, Any]) -> list[Role]:
    algorithm = job.get("AlgorithmSpecification") or {}
    config = _resources(job)
    types = {
        group["InstanceGroupName"]: group["InstanceType"] for group in config.get("InstanceGroups") or []
    }
    items = [*(algorithm.get("ContainerEntrypoint") or []), *(algorithm.get("ContainerArguments") or [])]
    recovered = read_command(items)
    counts: dict[str, int] = {}
    for name, _, _ in layout(job):
        counts[name] = counts.get(name, 0) + 1
    roles = []
    for name, count in counts.items():
        kind = types.get(name) or config.get("InstanceType", "")
        ours = recovered.get(name) or recovered.get("")
        words = _words(job, items, ours)
        role = Role(
            name,
            algorithm.get("TrainingImage", ""),
            entrypoint=words[0],
            args=words[1:],
            env={**(job.get("Environment") or {}), **(ours.env if ours is not None else {})},
            num_replicas=count,
            resource=Resource(-1, -1, -1, capabilities={INSTANCE_TYPE: kind.removeprefix("ml.")}),
        )
        roles.append(role)
    return roles


def _words(job: Mapping[str, Any], items: list[str], ours: Recovered | None) -> list[str]:
    """Return the command of a role, as it was given where it can be told from the request."""
    if ours is not None and not ours.toolkit:
        return ours.words
    if ours is None and items:
        return items
    try:
        values = {key: json.loads(value) for key, value in (job.get("HyperParameters") or {}).items()}
    except ValueError:  # those of a job that somebody else submitted may be any texts
        return ["train"]
    own = {key: value for key, value in values.items() if not key.startswith("sagemaker_")}
    arguments = ours.words if ours is not None and ours.words else as_arguments(own)
    program = values.get("sagemaker_program")
    return ["train", *([str(program)] if program else []), *arguments]


def _seconds(time: Any) -> float | None:
    return None if time is None else float(time.timestamp())
