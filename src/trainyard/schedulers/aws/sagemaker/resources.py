"""Instances: how many, of which types, in which groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainyard.errors import InvalidRunConfigException
from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts
from trainyard.specs.app import AppDef, Role
from trainyard.specs.named_resources_aws import INSTANCE_TYPE
from trainyard.workspace.registry import image_problem

#: What components say where nobody names an image.
NO_IMAGE = "<NONE>"
DEFAULT_VOLUME = 30
MOST_GROUPS = 5
_MEMBERS = {
    "name": "InstanceGroupName",
    "type": "InstanceType",
    "count": "InstanceCount",
    "instance_group_name": "InstanceGroupName",
    "instance_type": "InstanceType",
    "instance_count": "InstanceCount",
}


class Instances:
    """The instances of a job.

    Attributes:
        config: ``ResourceConfig``.
        count: how many there are in all.
        types: their types, without repetition.
    """

    def __init__(self, app: AppDef, opts: AWSSageMakerOpts) -> None:
        self.config: dict[str, Any] = {"VolumeSizeInGB": opts.volume_size or DEFAULT_VOLUME}
        groups = _groups(app, opts)
        if groups:
            self.config["InstanceGroups"] = groups
            self.count = sum(group["InstanceCount"] for group in groups)
            self.types = list(dict.fromkeys(group["InstanceType"] for group in groups))
        else:
            role = app.roles[0]
            self.count = role.num_replicas if role.num_replicas > 1 else opts.instance_count
            self.types = [_type_of(role, opts)]
            self.config |= {"InstanceType": self.types[0], "InstanceCount": self.count}
        optional = {
            "KeepAlivePeriodInSeconds": opts.keep_alive_period_in_seconds,
            "VolumeKmsKeyId": opts.volume_kms_key,
            "TrainingPlanArn": opts.training_plan,
        }
        self.config |= {key: value for key, value in optional.items() if value is not None}


def given_groups(opts: AWSSageMakerOpts) -> list[dict[str, Any]]:
    """Return the option ``instance_groups`` in the request's words.

    Raises:
        InvalidRunConfigException: a group lacks something, or has something else.
    """
    groups = []
    for given in opts.instance_groups or []:
        group = {_MEMBERS.get(key, key): value for key, value in given.items()}
        if set(group) != {"InstanceGroupName", "InstanceType", "InstanceCount"}:
            raise InvalidRunConfigException(
                f"instance_groups: {given} is no group",
                "instance_groups",
                hint='A group is {"name": "a", "type": "ml.m5.large", "count": 1}.',
            )
        group["InstanceCount"] = _count(group)
        groups.append(group)
    return groups


def _count(group: Mapping[str, Any]) -> int:
    try:
        return int(group["InstanceCount"])
    except (TypeError, ValueError):
        raise InvalidRunConfigException(
            f"instance_groups: the count of {group['InstanceGroupName']} is no number: "
            f"{group['InstanceCount']!r}",
            "instance_groups",
        ) from None


def _groups(app: AppDef, opts: AWSSageMakerOpts) -> list[dict[str, Any]]:
    given = given_groups(opts)
    if len(app.roles) == 1 or given:
        return given
    return [
        {
            "InstanceGroupName": role.name,
            "InstanceType": _type_of(role, opts),
            "InstanceCount": role.num_replicas,
        }
        for role in app.roles
    ]


def _type_of(role: Role, opts: AWSSageMakerOpts) -> str:
    if opts.instance_type:
        return opts.instance_type
    named = role.resource.capabilities.get(INSTANCE_TYPE)
    if named:
        return f"ml.{named}"
    raise InvalidRunConfigException(
        "option 'instance_type' (str) is required: type of the instances, such as ml.g5.xlarge",
        "instance_type",
        hint="Give it with -cfg instance_type=ml.m5.xlarge, or name an AWS resource: -h aws_g5.2xlarge.",
    )


def check_counts(app: AppDef, opts: AWSSageMakerOpts) -> list[str]:
    """Return what is wrong between the job's roles and the options about instances."""
    groups = given_groups(opts)
    if not groups:
        return _check_without_groups(app, opts)
    problems = []
    if opts.instance_type is not None:
        problems.append(
            "instance_type and instance_groups are both given: the groups have types of their own"
        )
    if opts.instance_count != 1:
        problems.append(
            "instance_count and instance_groups are both given: the groups have counts of their own"
        )
    names = [group["InstanceGroupName"] for group in groups]
    problems += [
        f"instance_groups: {name!r} is there twice"
        for name in sorted({n for n in names if names.count(n) > 1})
    ]
    counts = {group["InstanceGroupName"]: group["InstanceCount"] for group in groups}
    if len(app.roles) == 1:
        wanted, total = app.roles[0].num_replicas, sum(counts.values())
        if wanted not in (1, total):
            problems.append(
                f"instance_groups have {total} instances, the role {app.roles[0].name!r} {wanted} replicas"
            )
        return problems
    roles = {role.name: role.num_replicas for role in app.roles}
    if roles != counts:
        problems.append(
            f"instance_groups {_counts(counts)} are not the roles {_counts(roles)}: each role is a group"
        )
    return problems


def _check_without_groups(app: AppDef, opts: AWSSageMakerOpts) -> list[str]:
    problems = []
    if opts.instance_count < 1:
        problems.append(f"instance_count is {opts.instance_count}, it must be at least 1")
    replicas = app.roles[0].num_replicas
    if len(app.roles) == 1 and opts.instance_count != 1 and replicas not in (1, opts.instance_count):
        problems.append(f"instance_count is {opts.instance_count}, but the job has {replicas} replicas")
    if len(app.roles) > 1 and opts.instance_count != 1:
        problems.append(
            "instance_count is given, but the job has several roles, each with replicas of its own"
        )
    return problems


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}:{count}" for name, count in counts.items())


def role_problems(app: AppDef) -> list[str]:
    """Return what the job's roles ask for that SageMaker cannot give them."""
    problems = []
    if len(app.roles) > MOST_GROUPS:
        problems.append(
            f"the job has {len(app.roles)} roles, SageMaker takes {MOST_GROUPS} groups of instances"
        )
    for role in app.roles:
        problems += [f"role {role.name!r}: {problem}" for problem in _role_problems(role, app)]
    return problems


def _role_problems(role: Role, app: AppDef) -> list[str]:
    problems = []
    if role.image in ("", NO_IMAGE):
        problems.append("it has no image; name one in a registry (--image)")
    elif problem := image_problem(role.image):
        problems.append(problem)
    if role.mounts:
        problems.append("mounts are not possible; give data as channels (s3://, fsx://, efs://)")
    if role.max_retries:
        problems.append(
            f"max_retries is {role.max_retries}, but SageMaker repeats a job only after faults of its own: "
            "-cfg max_retry_attempts=N"
        )
    if role.min_replicas is not None and role.min_replicas != role.num_replicas:
        problems.append("min_replicas is given, but a training job has a fixed number of instances")
    if len(app.roles) > 1:
        first = app.roles[0]
        if role.image != first.image:
            problems.append(
                f"its image {role.image!r} is not that of {first.name!r}: a training job has one image"
            )
        if any(char.isspace() or char in "\"'\\,:{}[]" for char in role.name) or len(role.name) > 64:
            problems.append("its name cannot be that of a group of instances: use letters, digits, - and _")
    return problems
