"""Asks SageMaker about jobs, and turns its answers into states of jobs and their replicas."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from shunter.parallel import for_all
from shunter.schedulers.api import DescribeAppResponse, ListAppResponse
from shunter.schedulers.aws import aws_names
from shunter.schedulers.aws.aws_errors import AwsError, AwsForbiddenError, AwsUnreachableError
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_sagemaker_scheduler.container_setup import BOOTSTRAP, ROLE_NAME
from shunter.schedulers.aws_sagemaker_scheduler.reasons import exit_code_of, message_of, state_of
from shunter.schedulers.aws_sagemaker_scheduler.training_script import as_arguments
from shunter.specs.app import Role
from shunter.specs.named_resources_aws import INSTANCE_TYPE
from shunter.specs.resources import Resource
from shunter.specs.status import AppState, ReplicaStatus, RoleStatus, by_role, is_terminal

Job = Mapping[str, Any]

UNNAMED_ROLE = "algo"
PAGE_SIZE = 100
_NOT_FOUND = re.compile(r"not found|does not exist|could not find|couldn't find", re.I)
_NOT_ACTIVE = re.compile(r"status|not in progress|already|cannot be stopped", re.I)
_UNKNOWN_OPERATION = frozenset(
    {"UnknownOperationException", "UnknownOperation", "InvalidAction", "NotImplemented", "501", "404"}
)


# ---- calls


def describe_job(session: AwsSession, name: str) -> dict[str, Any] | None:
    """Describe a training job; None if there is no job of this name."""
    try:
        answer = session.call("sagemaker", "DescribeTrainingJob", TrainingJobName=name)
    except AwsError as error:
        if error.code == "ResourceNotFound" or (
            error.code == "ValidationException" and _NOT_FOUND.search(error.message)
        ):
            return None
        raise
    return with_member(answer, "DescribeTrainingJob", "TrainingJobStatus")


def with_member(answer: dict[str, Any], operation: str, member: str) -> dict[str, Any]:
    """Return an answer, or raise if it lacks the member: a client that was passed in may not check that."""
    if member in answer:
        return answer
    raise AwsUnreachableError(
        f"sagemaker:{operation}: the answer has no {member}",
        hint="A server between this machine and AWS answers in place of AWS.",
        operation=f"sagemaker:{operation}",
        lost_answer=True,
    )


def stop_job(session: AwsSession, name: str) -> None:
    """Stop a training job; does nothing if it has just ended."""
    try:
        session.call("sagemaker", "StopTrainingJob", TrainingJobName=name)
    except AwsError as error:
        if error.code != "ValidationException" or not _NOT_ACTIVE.search(error.message):
            raise


def list_jobs(
    session: AwsSession, since: float | None = None, name: str = "", everything: bool = False
) -> list[dict[str, Any]]:
    """Return training jobs with their tags, the oldest first.

    Args:
        session: where to look.
        since: only jobs created at or after this time, seconds since the epoch.
        name: only jobs whose name contains this.
        everything: also jobs that neither we nor the predecessor submitted; without their tags.
    """
    if everything:
        return _each_once(_listed_by_name(session, since, name))
    try:
        return _each_once(_found_by_tags(session, since, name))
    except AwsForbiddenError:
        pass
    except AwsError as error:
        if error.code not in _UNKNOWN_OPERATION:
            raise

    def tags(job: Job) -> list[dict[str, str]]:
        pages = session.pages("sagemaker", "ListTags", "Tags", ResourceArn=job["TrainingJobArn"])
        return [tag for page in pages for tag in page]

    jobs = _each_once(_listed_by_name(session, since, name))
    tagged = [{**job, "Tags": own} for job, own in zip(jobs, for_all(tags, jobs), strict=True)]
    return [job for job in tagged if {aws_names.TAG_VERSION, aws_names.TAG_PREDECESSOR} & tags_of(job).keys()]


def _each_once(jobs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return jobs without repetition: a page may come twice."""
    return list({job["TrainingJobName"]: job for job in jobs}.values())


def _found_by_tags(session: AwsSession, since: float | None, name: str) -> Iterator[dict[str, Any]]:
    ours = [
        {"Name": f"Tags.{tag}", "Operator": "Exists"}
        for tag in (aws_names.TAG_VERSION, aws_names.TAG_PREDECESSOR)
    ]
    expression: dict[str, Any] = {"SubExpressions": [{"Filters": ours, "Operator": "Or"}], "Operator": "And"}
    filters = []
    if since is not None:
        filters.append({"Name": "CreationTime", "Operator": "GreaterThanOrEqualTo", "Value": _iso(since)})
    if name:
        filters.append({"Name": "TrainingJobName", "Operator": "Contains", "Value": name})
    if filters:
        expression["Filters"] = filters
    for page in session.pages(
        "sagemaker",
        "Search",
        "Results",
        MaxResults=PAGE_SIZE,
        Resource="TrainingJob",
        SearchExpression=expression,
        SortBy="CreationTime",
        SortOrder="Ascending",
    ):
        yield from (result["TrainingJob"] for result in page if "TrainingJob" in result)


def _listed_by_name(session: AwsSession, since: float | None, name: str) -> Iterator[dict[str, Any]]:
    limits: dict[str, Any] = {"MaxResults": PAGE_SIZE, "SortBy": "CreationTime", "SortOrder": "Ascending"}
    if since is not None:
        limits["CreationTimeAfter"] = since - 1  # it means later than, to the second
    if name:
        limits["NameContains"] = name
    for page in session.pages("sagemaker", "ListTrainingJobs", "TrainingJobSummaries", **limits):
        for job in page:
            created = job.get("CreationTime")
            if since is None or created is None or created.timestamp() >= since:
                yield job


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def tags_of(job: Job) -> dict[str, str]:
    """Return a training job's tags by key."""
    return {tag["Key"]: tag["Value"] for tag in job.get("Tags") or []}


# ---- states


def layout(job: Job) -> list[tuple[str, int, str]]:
    """Return role, index and host of every replica.

    Hosts are ``algo-1``, ``algo-2``, .... Only the containers learn which of them are in which group; here
    they are assumed to be in the order of the groups.
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


def _resources(job: Job) -> dict[str, Any]:
    """Return a job's ``ResourceConfig``; of several preferences the selected one, or until then the first."""
    config = dict(job.get("ResourceConfig") or {})
    preferences = config.get("InstancePreferences")
    if preferences:
        first = preferences[0]
        config["InstanceType"] = config.get("SelectedInstanceType") or first.get("InstanceType", "")
        count = config.get("InstanceCount") or first.get("InstanceCount", 1)
        config["InstanceCount"] = config.get("SelectedInstanceCount") or count
    return config


def describe(app_id: str, job: Job) -> DescribeAppResponse:
    """Return a job as SageMaker describes it."""
    state = state_of(job)
    facts = _facts(job)
    return DescribeAppResponse(
        app_id,
        state,
        num_restarts=_restarts(job),
        msg=message_of(job),
        ui_url=aws_names.console_link(job.get("TrainingJobArn", ""), "sagemaker/home", "/jobs/"),
        metadata=facts,
        roles_statuses=_statuses(job, state),
        roles=_roles(job),
        results=facts.get("output"),
        ended_at=_ended_at(job),
    )


def listed(job: Job) -> ListAppResponse:
    """Return a job as SageMaker lists it."""
    name = job["TrainingJobName"]
    title = tags_of(job).get(aws_names.TAG_APP_NAME) or name.rpartition("-")[0] or name
    row = ListAppResponse(name, state_of(job), name=title)
    row.submitted_at = _seconds(job.get("CreationTime"))
    row.started_at = _seconds(job.get("TrainingStartTime"))
    row.ended_at = _ended_at(job)
    return row


def _ended_at(job: Job) -> float | None:
    """Return when a job ended; one that never reached its instances has no ``TrainingEndTime``."""
    if not is_terminal(state_of(job)):
        return None
    return _seconds(job.get("TrainingEndTime") or job.get("LastModifiedTime"))


def _restarts(job: Job) -> int:
    """Return how many times the job was restarted, after a spot interruption or a fault of the service."""
    transitions = job.get("SecondaryStatusTransitions") or []
    return sum(each.get("Status") in ("Interrupted", "Restarting") for each in transitions)


def _statuses(job: Job, state: AppState) -> list[RoleStatus]:
    places = layout(job)
    started = _seconds(job.get("TrainingStartTime"))
    ended = _seconds(job.get("TrainingEndTime")) if is_terminal(state) else None
    code = exit_code_of(job) if is_terminal(state) else None
    # if there are several instances, SageMaker does not say which one failed
    known = code if code == 0 or len(places) == 1 else None
    return by_role(
        ReplicaStatus(
            index,
            state,
            role,
            host,
            exit_code=known,
            started_at=started,
            ended_at=ended,
            restarts=_restarts(job),
        )
        for role, index, host in places
    )


def _facts(job: Job) -> dict[str, str]:
    """Return what else is known of a job, as texts."""
    resources, package = job.get("ResourceConfig") or {}, job.get("ModelPackageConfig") or {}
    output = (job.get("OutputDataConfig") or {}).get("S3OutputPath", "").rstrip("/")
    transitions = job.get("SecondaryStatusTransitions") or []
    facts: dict[str, Any] = {
        "arn": job.get("TrainingJobArn"),
        "secondary_status": job.get("SecondaryStatus"),
        "transitions": " -> ".join(str(each.get("Status")) for each in transitions),
        "model_artifacts": (job.get("ModelArtifacts") or {}).get("S3ModelArtifacts"),
        "output": f"{output}/{job.get('TrainingJobName')}/output" if output else None,
        "checkpoints": (job.get("CheckpointConfig") or {}).get("S3Uri"),
        "tensorboard": (job.get("TensorBoardOutputConfig") or {}).get("S3OutputPath"),
        "experiment": _joined(job.get("ExperimentConfig"), "ExperimentName", "TrialName", "RunName"),
        "mlflow": _joined(job.get("MlflowConfig"), "MlflowExperimentName", "MlflowRunName"),
        "mlflow_run": (job.get("MlflowDetails") or {}).get("MlflowRunId"),
        "model_package": job.get("OutputModelPackageArn") or package.get("ModelPackageGroupArn"),
        "training_plan": resources.get("TrainingPlanArn"),
        "selected_instance_type": resources.get("SelectedInstanceType"),
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


def _roles(job: Job) -> list[Role]:
    """Rebuild the roles; none where a script of ours starts their programs, which the history knows."""
    algorithm = job.get("AlgorithmSpecification") or {}
    words = [*(algorithm.get("ContainerEntrypoint") or []), *(algorithm.get("ContainerArguments") or [])]
    if words[: len(BOOTSTRAP)] == BOOTSTRAP:
        return []
    config, words = _resources(job), words or _script_words(job)
    types = {
        group["InstanceGroupName"]: group["InstanceType"] for group in config.get("InstanceGroups") or []
    }
    roles = []
    for name, count in Counter(name for name, _, _ in layout(job)).items():
        kind = types.get(name) or config.get("InstanceType", "")
        roles.append(
            Role(
                name,
                algorithm.get("TrainingImage", ""),
                entrypoint=words[0],
                args=words[1:],
                env=dict(job.get("Environment") or {}),
                num_replicas=count,
                resource=Resource(-1, -1, -1, capabilities={INSTANCE_TYPE: kind.removeprefix("ml.")}),
            )
        )
    return roles


def _script_words(job: Job) -> list[str]:
    """Return the command of an image's own ``train``, with the script and its arguments."""
    try:
        values = {key: json.loads(value) for key, value in (job.get("HyperParameters") or {}).items()}
    except ValueError:  # those of jobs that others submitted may be any texts
        return ["train"]
    program = str(values.get("sagemaker_program", ""))
    own = {key: value for key, value in values.items() if not key.startswith("sagemaker_")}
    return ["train", *filter(None, [program]), *as_arguments(own)]


def _seconds(time: Any) -> float | None:
    return None if time is None else float(time.timestamp())
