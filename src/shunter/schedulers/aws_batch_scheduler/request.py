"""The requests to Batch, made from a job and options: a job definition, and a job that uses it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shunter import __version__
from shunter._toolkit import race_lease
from shunter._toolkit.function_call import PAYLOAD
from shunter.docker.image_reference import image_problem
from shunter.errors import ConfigError, did_you_mean
from shunter.redaction import Redactor
from shunter.schedulers.aws import aws_names
from shunter.schedulers.aws_batch_scheduler.code_delivery import CodeDelivery
from shunter.schedulers.aws_batch_scheduler.options import FARGATE, AWSBatchOpts
from shunter.schedulers.aws_batch_scheduler.replicas import (
    ARRAY,
    MULTINODE,
    OF_THE_RUN,
    Group,
    layout,
    replica_command,
)
from shunter.schedulers.aws_batch_scheduler.retry_strategy import end_rules, retry_strategy
from shunter.schedulers.aws_batch_scheduler.rules import check_options, check_requests
from shunter.schedulers.devices import DEVICES, get_device_mounts
from shunter.schedulers.ids import make_unique, normalize
from shunter.schedulers.toolkit_supervision import (
    SIGNING_SECRET,
    EndRules,
    check_roles,
    check_variables,
    is_asked_for,
    warnings_of,
    with_variables,
)
from shunter.specs.app import NO_IMAGE, AppDef, Role, macros
from shunter.specs.mounts import BindMount, DeviceMount, Mount, VolumeMount
from shunter.specs.named_resources_aws import INSTANCE_TYPE
from shunter.specs.resources import Resource
from shunter.specs.training import DOCUMENT

DIGEST_LENGTH = 16


@dataclass
class BatchJob:
    """The requests of a job.

    Args:
        name: unique name of the job.
        queue: the queue, by name or ARN.
        share_id: the share identifier.
        job_def: parameters of ``RegisterJobDefinition``, the same for every run of the job.
        images_to_push: empty, since images are pushed before the job is submitted.
        submission: parameters of ``SubmitJob``.
        region: region that the job is for; None for that of the environment.
        profile: profile to submit it with; None for that of the environment.
        warnings: differences from what the user may expect.
    """

    name: str
    queue: str
    share_id: str | None
    job_def: dict[str, Any]
    images_to_push: dict[str, tuple[str, str]]
    submission: dict[str, Any] = field(default_factory=dict)
    region: str | None = None
    profile: str | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def app_id(self) -> str:
        """The job's app id."""
        return aws_names.make_app_id(self.queue, self.name)

    def shown(self) -> dict[str, Any]:
        """Return both requests by operation, without secrets."""
        return {"RegisterJobDefinition": _shown(self.job_def), "SubmitJob": _shown(self.submission)}

    def __str__(self) -> str:
        return json.dumps(self.shown(), indent=2, ensure_ascii=False)

    def __repr__(self) -> str:
        return str(self)


def make_request(
    app: AppDef, cfg: Mapping[str, Any], session: str, code: CodeDelivery | None = None
) -> BatchJob:
    """Make a job's requests and check them offline, without changing the job.

    Args:
        app: the job.
        cfg: resolved options.
        session: the session of the job's handle.
        code: the code that travels without an image.

    Raises:
        ConfigError: Batch cannot run the job, or would refuse a request; all problems are reported.
    """
    opts = AWSBatchOpts(**cfg)
    check_options(opts)
    kind, groups = layout(app, opts.array)
    if kind == MULTINODE and opts.platform == FARGATE:
        raise ConfigError(
            "Fargate runs no multi-node jobs",
            hint="Leave platform=FARGATE out, or make independent replicas an array job: -cfg array=true.",
        )
    in_race = any(race_lease.VARIABLE in role.env for role in app.roles)
    strategy, warnings = retry_strategy(max(role.max_retries for role in app.roles), opts, in_race=in_race)
    app, more_warnings = _supervised(app, opts, kind, end_rules(strategy))
    kind, groups = layout(app, opts.array)
    name = make_unique(f"{app.name}-{opts.share_id}" if opts.share_id else app.name)
    app_id = aws_names.make_app_id(opts.queue, name)
    tags = _tags(app, opts)
    containers = [
        (group.target_nodes, *_containers(_with_code(group, code, name), opts, app_id, name, session))
        for group in groups
    ]
    if kind == MULTINODE:
        definition, overrides = _multinode(groups, containers)
    else:
        ((_, properties, override),) = containers
        definition = {"type": "container", "containerProperties": properties}
        overrides = {"containerOverrides": override}
    definition |= {"retryStrategy": strategy, **_definition_options(opts), "tags": tags}
    job_def = name_by_content(definition, app.name)
    submission: dict[str, Any] = {
        "jobName": name,
        "jobQueue": opts.queue,
        "jobDefinition": job_def["jobDefinitionName"],
        "tags": tags,
        **overrides,
    }
    if kind == ARRAY:
        submission["arrayProperties"] = {"size": groups[0].count}
    if opts.share_id:
        submission["shareIdentifier"] = opts.share_id
    job = BatchJob(
        name,
        opts.queue,
        opts.share_id,
        job_def,
        images_to_push={},
        submission=submission,
        region=opts.region or aws_names.region_of_arn(opts.queue),
        profile=opts.profile,
        warnings=warnings + more_warnings,
    )
    check_requests(job.job_def, job.submission)
    return job


def _supervised(app: AppDef, opts: AWSBatchOpts, kind: str, rules: EndRules) -> tuple[AppDef, list[str]]:
    """Give the toolkit in the containers what it needs for notifications and hang detection.

    Returns the job, and warnings about differences from what the user may expect.
    """
    check_roles("aws_batch", app, opts, {role.name: DOCUMENT in role.env for role in app.roles})
    if not is_asked_for(opts):
        return app, []
    secrets = opts.secrets or {}
    check_variables(opts, {**app.roles[0].env, **secrets})
    if opts.notify_secret:
        raise ConfigError(
            "notify_secret would be in the job's variables, which all who may describe the job can read",
            hint=f"Keep it in Secrets Manager or SSM: -cfg secrets={SIGNING_SECRET}=ARN.",
        )
    if opts.notify and kind == ARRAY:
        raise ConfigError("notify: the replicas of an array job end one by one, and none knows of the others")
    is_signed = SIGNING_SECRET in secrets
    warnings = warnings_of("aws_batch", opts, rules, hidden=False, is_signed=is_signed)
    return with_variables(app, opts, rules, ""), warnings


def add_dependencies(
    job: BatchJob, parents: Mapping[str, tuple[str, str]], any_end: list[str], region: str
) -> None:
    """Make a job wait for the success of others.

    Args:
        job: the job, whose request is changed.
        parents: Batch's id and region of the jobs to wait for, by app id.
        any_end: parents that may end in any way, which Batch does not support.
        region: the job's own.

    Raises:
        ConfigError: Batch cannot wait for these.
    """
    if any_end:
        raise ConfigError(
            f"AWS Batch starts a job after the success of others only, not after any end of {any_end[0]}",
            hint=f"Wait for it first: `shunter wait {any_end[0]}; shunter run ...`.",
        )
    if len(parents) > MOST_PARENTS:
        raise ConfigError(f"{len(parents)} jobs to wait for: AWS Batch accepts at most {MOST_PARENTS}")
    for app_id, (_, other) in parents.items():
        if other != region:
            raise ConfigError(f"{app_id} is in {other}, and a job in {region} cannot wait for it")
    if parents:
        job.submission["dependsOn"] = [{"jobId": job_id} for job_id, _ in parents.values()]


def _containers(
    group: Group, opts: AWSBatchOpts, app_id: str, name: str, session: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a group's container for the definition, and what this run overrides."""
    lasting = replica_command(group, aws_names.make_app_id(opts.queue, macros.app_id), macros.app_id, session)
    actual = replica_command(group, app_id, name, session)
    of_the_run = OF_THE_RUN
    if len(lasting.env.get(PAYLOAD, "")) <= MOST_OF_A_CALL:
        of_the_run |= {PAYLOAD}  # so that calls of a function have one definition
    env = {key: value for key, value in lasting.env.items() if key not in of_the_run}
    definition = {
        **container(group.role, opts, group.kind),
        "command": lasting.command,
        "environment": _pairs(env),
    }
    changed = {key: value for key, value in actual.env.items() if env.get(key) != value}
    override: dict[str, Any] = {"environment": _pairs(changed)}
    if actual.command != lasting.command:
        override["command"] = actual.command
    return definition, override


def _with_code(group: Group, code: CodeDelivery | None, name: str) -> Group:
    """Give a group's replicas the variables by which they get the job's code."""
    if code is None:
        return group
    env = {**group.role.env, **code.variables(group.role, name)}
    return replace(group, role=replace(group.role, env=env))


def _multinode(
    groups: list[Group], containers: list[tuple[str, dict[str, Any], dict[str, Any]]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a multi-node job's part of the definition, and what this run overrides."""
    properties = {
        "numNodes": sum(group.count for group in groups),
        "mainNode": 0,
        "nodeRangeProperties": [
            {"targetNodes": nodes, "container": definition} for nodes, definition, _ in containers
        ],
    }
    overrides = [{"targetNodes": nodes, "containerOverrides": override} for nodes, _, override in containers]
    definition = {"type": "multinode", "nodeProperties": properties}
    return definition, {"nodeOverrides": {"nodePropertyOverrides": overrides}}


def _definition_options(opts: AWSBatchOpts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if opts.platform == FARGATE:
        found["platformCapabilities"] = [FARGATE]
    if opts.timeout is not None:
        found["timeout"] = {"attemptDurationSeconds": opts.timeout}
    if opts.share_id:
        found["schedulingPriority"] = opts.priority
    return found


def _pairs(env: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": key, "value": env[key]} for key in sorted(env)]


def _tags(app: AppDef, opts: AWSBatchOpts) -> dict[str, str]:
    return {
        **app.metadata,
        **(opts.tags or {}),
        aws_names.TAG_VERSION: __version__,
        aws_names.TAG_APP_NAME: aws_names.tag_value(app.name),
        aws_names.TAG_USER: aws_names.tag_value(opts.user),
    }


def _shown(value: Any, key: str = "") -> Any:
    """Return a part of the requests without secrets."""
    if key == "command":
        return Redactor().words(value)
    if key == "environment":
        return Redactor().json(value)
    if isinstance(value, dict):
        return {name: _shown(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return value


MOST_PARENTS = 20
#: Characters of a call among a run's own variables, which have 8,192 with the signatures.
MOST_OF_A_CALL = 2000
_PERMISSIONS = {"r": "READ", "w": "WRITE", "m": "MKNOD"}
_EFS = re.compile(r"(?P<id>fs-[0-9a-zA-Z-]+)(?:@(?P<point>fsap-[0-9a-zA-Z-]+))?(?::(?P<root>/.*))?")


def _check_devices(devices: Mapping[str, int]) -> None:
    """Refuse devices whose files are not known.

    Raises:
        ConfigError: there is such a device.
    """
    for name in devices:
        if name not in DEVICES:
            raise ConfigError(
                f"AWS Batch has no devices named {name!r}",
                hint=f"{did_you_mean(name, DEVICES)} Others can be mounted: type=device,src=/dev/...",
            )


def container_mounts(mounts: Iterable[Mount], has_job_role: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Return ``volumes``, ``mountPoints`` and ``devices``; those that are empty are left out.

    Args:
        mounts: binds of host directories, EFS file systems (``fs-ID``, ``fs-ID:/DIRECTORY`` or
            ``fs-ID@fsap-ID``, an access point) and devices.
        has_job_role: whether the job has a role, for EFS to check.

    Raises:
        ConfigError: a volume is not an EFS file system, or two mounts have the same destination.
    """
    found: dict[str, list[dict[str, Any]]] = {"volumes": [], "mountPoints": [], "devices": []}
    places: set[str] = set()
    for index, mount in enumerate(mounts):
        if mount.dst_path in places:
            raise ConfigError(f"two mounts go to {mount.dst_path}")
        places.add(mount.dst_path)
        place = {"containerPath": mount.dst_path}
        if isinstance(mount, DeviceMount):
            permissions = [_PERMISSIONS[letter] for letter in mount.permissions]
            found["devices"].append({"hostPath": mount.src_path, **place, "permissions": permissions})
            continue
        name = f"mount_{index}"
        if isinstance(mount, BindMount):
            volume: dict[str, Any] = {"host": {"sourcePath": mount.src_path}}
        else:
            volume = _efs(mount, has_job_role)
        found["volumes"].append({"name": name, **volume})
        found["mountPoints"].append({**place, "readOnly": mount.read_only, "sourceVolume": name})
    return {key: items for key, items in found.items() if items}


def _efs(mount: VolumeMount, has_job_role: bool) -> dict[str, Any]:
    parts = _EFS.fullmatch(mount.src)
    if parts is None:
        raise ConfigError(
            f"the volume {mount.src!r} is not an EFS file system",
            hint="Write fs-ID, fs-ID:/DIRECTORY or fs-ID@fsap-ID; a directory of the host is type=bind.",
        )
    volume: dict[str, Any] = {"fileSystemId": parts["id"]}
    if parts["point"]:
        if parts["root"] not in (None, "/"):
            raise ConfigError(f"the volume {mount.src!r}: the access point already determines the directory")
        # required with an access point
        volume["transitEncryption"] = "ENABLED"
        iam = "ENABLED" if has_job_role else "DISABLED"
        volume["authorizationConfig"] = {"accessPointId": parts["point"], "iam": iam}
    elif parts["root"]:
        volume["rootDirectory"] = parts["root"]
    return {"efsVolumeConfiguration": volume}


_ULIMIT = re.compile(r"(?P<name>[a-z]+):(?P<soft>-1|\d+):(?P<hard>-1|\d+)")
_PARAMETER = "ssm:"
_REFERENCE = re.compile(
    r"arn:aws[\w-]*:secretsmanager:[\w-]+:\d{12}:secret:\S+|arn:aws[\w-]*:ssm:[\w-]+:\d{12}:parameter/\S+"
    r"|ssm:/?[\w.\-/]+"
)


def container(role: Role, opts: AWSBatchOpts, kind: str) -> dict[str, Any]:
    """Return the properties of a role's containers, apart from command and environment.

    Raises:
        ConfigError: Batch does not have the resource, a mount, a limit or a secret.
    """
    if role.image in ("", NO_IMAGE):
        raise ConfigError(
            f"role {role.name!r} has no image",
            hint="AWS Batch runs containers: name an image that its hosts can pull, as with --image.",
        )
    if problem := image_problem(role.image):
        raise ConfigError(f"role {role.name!r}: {problem}")
    _check_devices(role.resource.devices)
    mounts = [*role.mounts, *get_device_mounts(role.resource.devices)]
    try:
        found = container_mounts(mounts, has_job_role=bool(opts.job_role_arn))
        devices = found.pop("devices", [])
        properties: dict[str, Any] = {
            "image": role.image,
            "resourceRequirements": requirements(role.resource),
            "logConfiguration": {"logDriver": "awslogs"},
            **found,
        }
        if opts.log_group:
            properties["logConfiguration"]["options"] = {"awslogs-group": opts.log_group}
        if opts.job_role_arn:
            properties["jobRoleArn"] = opts.job_role_arn
        if opts.execution_role_arn:
            properties["executionRoleArn"] = opts.execution_role_arn
        if opts.platform == FARGATE:
            properties |= _fargate(role, opts, devices)
        else:
            properties |= _ec2(role.resource, opts, devices)
        if opts.exec:
            properties["enableExecuteCommand"] = True
        if opts.secrets:
            properties["secrets"] = _secrets(opts.secrets, role)
        instance_type = role.resource.capabilities.get(INSTANCE_TYPE)
        if instance_type and kind == MULTINODE:
            properties["instanceType"] = str(instance_type)
    except ConfigError as error:
        raise ConfigError(f"role {role.name!r}: {error.message}", hint=error.hint) from None
    return properties


def requirements(resource: Resource) -> list[dict[str, str]]:
    """Return vCPUs (at least one), memory and GPUs.

    Raises:
        ConfigError: no memory is given.
    """
    if resource.memMB <= 0:
        raise ConfigError(
            "AWS Batch needs to know the memory of a replica, and memMB is not given",
            hint="Give the memory in MiB (--memMB 4096), or a named resource (-h aws_g5.xlarge).",
        )
    found = [
        {"type": "VCPU", "value": str(max(resource.cpu, 1))},
        {"type": "MEMORY", "value": str(resource.memMB)},
    ]
    if resource.gpu > 0:
        found.append({"type": "GPU", "value": str(resource.gpu)})
    return found


def _ec2(resource: Resource, opts: AWSBatchOpts, devices: list[dict[str, Any]]) -> dict[str, Any]:
    # Data loaders share memory, for which Docker's 64 MiB do not suffice.
    linux: dict[str, Any] = {"sharedMemorySize": resource.memMB}
    if devices:
        linux["devices"] = devices
    found: dict[str, Any] = {"privileged": opts.privileged, "linuxParameters": linux}
    if opts.ulimits:
        found["ulimits"] = [_ulimit(text) for text in opts.ulimits]
    return found


def _fargate(role: Role, opts: AWSBatchOpts, devices: list[dict[str, Any]]) -> dict[str, Any]:
    cannot = {
        "GPUs": role.resource.gpu > 0,
        "devices": bool(devices),
        "privileged containers": opts.privileged,
        "ulimits": bool(opts.ulimits),
    }
    for what, wanted in cannot.items():
        if wanted:
            raise ConfigError(f"Fargate has no {what}", hint="Leave platform=FARGATE out: EC2 has them.")
    found: dict[str, Any] = {
        "fargatePlatformConfiguration": {"platformVersion": "LATEST"},
        "networkConfiguration": {"assignPublicIp": "ENABLED" if opts.public_ip else "DISABLED"},
    }
    if opts.ephemeral_storage is not None:
        found["ephemeralStorage"] = {"sizeInGiB": opts.ephemeral_storage}
    return found


def _ulimit(text: str) -> dict[str, Any]:
    parts = _ULIMIT.fullmatch(text.strip())
    if parts is None:
        raise ConfigError(
            f"cannot read the limit {text!r}", hint="Write name:soft:hard, such as nofile:65536:65536."
        )
    soft, hard = int(parts["soft"]), int(parts["hard"])
    if hard != -1 and (soft == -1 or soft > hard):
        raise ConfigError(f"the soft limit of {text!r} is above the hard limit")
    return {"name": parts["name"], "softLimit": soft, "hardLimit": hard}


def _secrets(secrets: dict[str, str], role: Role) -> list[dict[str, str]]:
    found = []
    for name, reference in sorted(secrets.items()):
        if _REFERENCE.fullmatch(reference) is None:  # not shown, since it may be the secret itself
            raise ConfigError(
                f"the secret {name!r} is not a reference to a secret",
                hint="Give the ARN of a Secrets Manager secret or SSM parameter, or ssm:PARAMETER.",
            )
        if name in role.env:
            raise ConfigError(f"the variable {name!r} is both a secret and a variable of the job")
        found.append({"name": name, "valueFrom": reference.removeprefix(_PARAMETER)})
    return found


def name_by_content(job_def: dict[str, Any], app_name: str) -> dict[str, Any]:
    """Return a definition with a digest of its content as a tag and at the end of its name."""
    tags = {key: value for key, value in job_def["tags"].items() if key != aws_names.TAG_CONTENT}
    content = {key: value for key, value in job_def.items() if key != "jobDefinitionName"} | {"tags": tags}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]
    return {
        "jobDefinitionName": f"{normalize(app_name)}-{digest}",
        **content,
        "tags": {**tags, aws_names.TAG_CONTENT: digest},
    }


def rename_by_content(job_def: dict[str, Any]) -> dict[str, Any]:
    """Return a definition named by its present content."""
    return name_by_content(job_def, job_def["jobDefinitionName"][: -DIGEST_LENGTH - 1])
