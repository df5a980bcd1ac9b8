"""A role's container as Batch describes it: image, needs, mounts, permissions."""

from __future__ import annotations

import re
from typing import Any

from trainyard.docker.image_reference import image_problem
from trainyard.errors import ConfigError
from trainyard.schedulers.aws.batch.mounts import container_mounts, device_mounts
from trainyard.schedulers.aws.batch.options import FARGATE, AWSBatchOpts
from trainyard.schedulers.aws.batch.shapes import MULTINODE
from trainyard.specs.app import Role
from trainyard.specs.named_resources_aws import INSTANCE_TYPE
from trainyard.specs.resources import Resource

_ULIMIT = re.compile(r"(?P<name>[a-z]+):(?P<soft>-1|\d+):(?P<hard>-1|\d+)")
#: What components leave where no image is given.
NO_IMAGE = "<NONE>"
_PARAMETER = "ssm:"
_REFERENCE = re.compile(
    r"arn:aws[\w-]*:secretsmanager:[\w-]+:\d{12}:secret:\S+|arn:aws[\w-]*:ssm:[\w-]+:\d{12}:parameter/\S+"
    r"|ssm:/?[\w.\-/]+"
)


def container(role: Role, opts: AWSBatchOpts, kind: str) -> dict[str, Any]:
    """Return the properties of a role's containers, apart from command and environment.

    Raises:
        ConfigError: the resource, a mount, a limit or a secret cannot be had on Batch.
    """
    problem = "" if role.image in ("", NO_IMAGE) else image_problem(role.image)
    if problem:
        raise ConfigError(f"role {role.name!r}: {problem}")
    if role.image in ("", NO_IMAGE):
        raise ConfigError(
            f"role {role.name!r} has no image",
            hint="AWS Batch runs containers: name one that its hosts can pull, as with --image.",
        )
    mounts = [*role.mounts, *device_mounts(role.resource.devices)]
    try:
        found = container_mounts(mounts, has_job_role=bool(opts.job_role_arn))
        devices = found.pop("devices", [])
        properties: dict[str, Any] = {
            "image": role.image,
            "resourceRequirements": requirements(role.resource),
            "logConfiguration": _log(opts.log_group),
            **found,
            **_permissions(opts),
        }
        if opts.platform == FARGATE:
            properties |= _fargate(role, opts, devices)
        else:
            properties |= _ec2(role.resource, opts, devices)
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
            "AWS Batch must know how much memory a replica needs, and memMB is not given",
            hint="Give the memory in MiB (--memMB 4096), or a named resource (-h aws_g5.xlarge).",
        )
    found = [
        {"type": "VCPU", "value": str(max(resource.cpu, 1))},
        {"type": "MEMORY", "value": str(resource.memMB)},
    ]
    if resource.gpu > 0:
        found.append({"type": "GPU", "value": str(resource.gpu)})
    return found


def _log(group: str | None) -> dict[str, Any]:
    return {"logDriver": "awslogs", **({"options": {"awslogs-group": group}} if group else {})}


def _permissions(opts: AWSBatchOpts) -> dict[str, str]:
    roles = {"jobRoleArn": opts.job_role_arn, "executionRoleArn": opts.execution_role_arn}
    return {key: arn for key, arn in roles.items() if arn}


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
        raise ConfigError(f"the limit {text!r}: the soft one is above the hard one")
    return {"name": parts["name"], "softLimit": soft, "hardLimit": hard}


def _secrets(secrets: dict[str, str], role: Role) -> list[dict[str, str]]:
    found = []
    for name, reference in sorted(secrets.items()):
        if _REFERENCE.fullmatch(reference) is None:  # it may be the secret itself, so it is not shown
            raise ConfigError(
                f"the secret {name!r} is no reference to a secret",
                hint="Give the ARN of a Secrets Manager secret or SSM parameter, or ssm:PARAMETER.",
            )
        if name in role.env:
            raise ConfigError(f"the variable {name!r} is both a secret and given by the job")
        found.append({"name": name, "valueFrom": reference.removeprefix(_PARAMETER)})
    return found
