"""Instances: how many, of which types, in which groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.docker.image_reference import image_problem
from trainyard.errors import InvalidRunConfigException
from trainyard.schedulers.aws.sagemaker.configs import config_of, configs_of
from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts
from trainyard.specs.app import AppDef, Role
from trainyard.specs.named_resources_aws import INSTANCE_TYPE

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
        count: how many there are in all; of several preferences the most that there can be.
        types: their types, or those that they may have, without repetition.
        groups: names of the groups.
        type: the type of all of them; None if there are groups or preferences.
    """

    def __init__(self, app: AppDef, opts: AWSSageMakerOpts) -> None:
        self.config: dict[str, Any] = {"VolumeSizeInGB": opts.volume_size or DEFAULT_VOLUME}
        groups = _groups(app, opts)
        self.groups = [group["InstanceGroupName"] for group in groups]
        self.type: str | None = None
        preferences = given_preferences(opts)
        if preferences:
            self.config["InstancePreferences"] = preferences
            self.types = [str(each.get("InstanceType", "")) for each in preferences]
            counts = [each["InstanceCount"] for each in preferences if "InstanceCount" in each]
            known = [count for count in counts if isinstance(count, int)]
            self.count = max(known, default=_replicas(app, opts))
            if not counts:
                self.config["InstanceCount"] = self.count
        elif groups:
            self.config["InstanceGroups"] = groups
            self.count = sum(group["InstanceCount"] for group in groups)
            self.types = list(dict.fromkeys(group["InstanceType"] for group in groups))
        else:
            self.count = _replicas(app, opts)
            self.type = _type_of(app.roles[0], opts)
            self.types = [self.type]
            self.config |= {"InstanceType": self.type, "InstanceCount": self.count}
        optional = {
            "KeepAlivePeriodInSeconds": opts.keep_alive_period_in_seconds,
            "VolumeKmsKeyId": opts.volume_kms_key or None,
            "TrainingPlanArn": opts.training_plan or None,
            "InstancePlacementConfig": config_of(opts, "instance_placement_config") or None,
        }
        self.config |= {key: value for key, value in optional.items() if value is not None}


def _replicas(app: AppDef, opts: AWSSageMakerOpts) -> int:
    role = app.roles[0]
    return role.num_replicas if role.num_replicas > 1 else opts.instance_count


def given_preferences(opts: AWSSageMakerOpts) -> list[dict[str, Any]]:
    """Return the option ``instance_preferences`` in the request's words.

    Raises:
        InvalidRunConfigException: a preference has something that there is not.
    """
    whole: list[str | dict[str, Any]] = [
        {"InstanceType": each} if isinstance(each, str) else each for each in opts.instance_preferences or []
    ]
    return configs_of(dataclasses.replace(opts, instance_preferences=whole), "instance_preferences")


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
    if len(app.roles) == 1 or given or opts.instance_preferences:
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
    if opts.instance_preferences is not None:
        return list(_preference_problems(app, opts))
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


def _preference_problems(app: AppDef, opts: AWSSageMakerOpts) -> Iterator[str]:
    """Check what the request cannot say any more; `request_rules` has the API's own rules."""
    preferences = given_preferences(opts)
    if not preferences:
        yield "instance_preferences is empty: name the types of instances, the best first"
    for other in ("instance_type", "instance_groups"):
        if getattr(opts, other):
            yield f"instance_preferences and {other} are both given: the preferences have types of their own"
    if len(app.roles) > 1:
        yield "instance_preferences is given, but the job has several roles, which need a group each"
    counts = [each["InstanceCount"] for each in preferences if "InstanceCount" in each]
    if counts and opts.instance_count != 1:
        yield "instance_count is given, and instance_preferences have counts of their own"
    replicas = app.roles[0].num_replicas
    if replicas > 1 and any(count != replicas for count in counts):
        found = ", ".join(map(str, counts))
        yield f"instance_preferences have {found} instances, the role {replicas} replicas"
    if not counts:
        yield from _check_without_groups(app, opts)


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


def role_problems(app: AppDef, *, retries: bool = False) -> list[str]:
    """Return what the job's roles ask for that SageMaker cannot give them.

    Args:
        app: the job.
        retries: whether the job goes through a queue, which starts it again.
    """
    problems = []
    if len(app.roles) > MOST_GROUPS:
        problems.append(
            f"the job has {len(app.roles)} roles, SageMaker takes {MOST_GROUPS} groups of instances"
        )
    for role in app.roles:
        problems += [f"role {role.name!r}: {problem}" for problem in _role_problems(role, app, retries)]
    return problems


def _role_problems(role: Role, app: AppDef, retries: bool) -> list[str]:
    problems = []
    if role.image in ("", NO_IMAGE):
        problems.append("it has no image; name one in a registry (--image)")
    elif problem := image_problem(role.image):
        problems.append(problem)
    if role.mounts:
        problems.append("mounts are not possible; give data as channels (s3://, fsx://, efs://)")
    if role.max_retries and not retries:
        problems.append(
            f"max_retries is {role.max_retries}, but SageMaker repeats a job only after faults of its own: "
            "-cfg max_retry_attempts=N, or a queue that does: -cfg batch_queue=NAME"
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
