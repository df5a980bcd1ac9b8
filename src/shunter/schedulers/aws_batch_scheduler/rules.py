"""What is wrong with a job for Batch: by the service's model, and what Batch would ignore or find out late.

What RegisterJobDefinition and SubmitJob refuse at once is not repeated here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from shunter.errors import ConfigError, did_you_mean, refuse
from shunter.schedulers.aws.service_model import problems_of, shape_of
from shunter.schedulers.aws_batch_scheduler.code_delivery import check_location, too_large
from shunter.schedulers.aws_batch_scheduler.options import (
    EC2,
    FARGATE,
    PLATFORMS,
    RETRY_ANY,
    RETRY_SPOT,
    AWSBatchOpts,
)
from shunter.specs.app import Role
from shunter.specs.training import CALL_KEY, lost_results, script_of, specification
from shunter.workspace.directory_shipment import program_problem
from shunter.workspace.manifest import Manifest

#: In bytes and characters: "AWS Batch service quotas" of the user guide, and ECS's RunTask for the overrides.
LARGEST_DEFINITION, LARGEST_SUBMISSION, LARGEST_OVERRIDES = 24 << 10, 30 << 10, 8192
_ROLE = re.compile(r"arn:aws[\w-]*:iam::\d{12}:role/[\w+=,.@/-]+")


def check_options(opts: AWSBatchOpts) -> None:
    """Check what concerns the options alone.

    Raises:
        ConfigError: with all that is wrong.
    """
    refuse("the options of aws_batch", list(_option_problems(opts)))


def check_requests(job_def: dict[str, Any], submission: dict[str, Any]) -> None:
    """Check both requests: against the service's model, then against what Batch would find out late.

    Raises:
        ConfigError: with all that is wrong.
    """
    for operation, params in (("RegisterJobDefinition", job_def), ("SubmitJob", submission)):
        refuse(f"AWS Batch would refuse {operation}", problems_of("batch", operation, params))
    check_sizes(job_def, submission)
    ranges = (job_def.get("nodeProperties") or {}).get("nodeRangeProperties", [])
    types = {each["container"].get("instanceType") for each in ranges}
    if len(types) > 1:
        shown = ", ".join(sorted(str(kind or "any") for kind in types))
        raise ConfigError(f"all nodes of a multi-node job have one instance type; the roles ask for {shown}")


def check_sizes(job_def: dict[str, Any], submission: dict[str, Any]) -> None:
    """Check that both requests are as small as Batch demands.

    Raises:
        ConfigError: one is too large.
    """
    overrides = [submission.get("containerOverrides") or {}]
    nodes = (submission.get("nodeOverrides") or {}).get("nodePropertyOverrides") or []
    overrides += [each["containerOverrides"] for each in nodes]
    sizes = [
        ("the job's definition has", _size_of(job_def), LARGEST_DEFINITION),
        ("the request to submit it has", _size_of(submission), LARGEST_SUBMISSION),
        *(
            ("a container's own variables and command have", _size_of(each), LARGEST_OVERRIDES)
            for each in overrides
        ),
    ]
    for what, size, largest in sizes:
        if size > largest:
            raise too_large(f"{what} {size} bytes, and AWS Batch takes {largest}")


def _size_of(request: dict[str, Any]) -> int:
    return len(
        json.dumps(request, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    )


def _option_problems(opts: AWSBatchOpts) -> Iterator[str]:
    if opts.code_location is not None and (problem := check_location(opts.code_location)):
        yield problem
    if opts.priority and opts.share_id is None:
        yield "priority needs share_id: only queues with a scheduling policy have priorities"
    if opts.platform not in PLATFORMS:
        yield f"platform must be {' or '.join(PLATFORMS)}, not {opts.platform!r}"
    if opts.retry_on not in (RETRY_ANY, RETRY_SPOT):
        yield f"retry_on must be {RETRY_ANY} or {RETRY_SPOT}, not {opts.retry_on!r}"
    for name in ("job_role_arn", "execution_role_arn"):
        arn = getattr(opts, name)
        if arn is not None and _ROLE.fullmatch(arn) is None:
            yield f"{name} {arn!r} is not the ARN of a role, such as arn:aws:iam::123456789012:role/NAME"
    if opts.secrets and not opts.execution_role_arn:
        yield "secrets need execution_role_arn: that role reads them"
    if opts.platform == FARGATE and not opts.execution_role_arn:
        yield "Fargate needs execution_role_arn: that role pulls the image and writes the log"
    if opts.ephemeral_storage is not None and opts.platform == EC2:
        yield "ephemeral_storage is for platform=FARGATE; on EC2 the compute environment has the disks"
    if opts.public_ip and opts.platform == EC2:
        yield "public_ip is for platform=FARGATE; on EC2 the compute environment has the network"
    known = shape_of("ecs", "UlimitName").enum if opts.ulimits else ()
    for limit in opts.ulimits or []:
        name = limit.strip().partition(":")[0]
        if name not in known:
            yield f"there is no ulimit {name!r}. {did_you_mean(name, known)}"


def node_range(text: str, count: int) -> tuple[int, int]:
    """Return the first node of a range (``0:3``, ``:3``, ``2:`` or ``5``), and the one after its last."""
    first, colon, last = text.partition(":")
    start = int(first or 0)
    return start, (int(last) if last else count - 1) + 1 if colon else start + 1


def training_warnings(
    roles: Iterable[Role], manifest: Manifest | None, *, sends_results: bool = False
) -> Iterator[str]:
    """Yield warnings for roles that run scripts under the toolkit: lost results, likely failures.

    Args:
        roles: the job's roles.
        manifest: the code that travels with the job, if any.
        sends_results: whether results without a place are sent to that of the code.
    """
    for role in roles:
        spec = specification(role.metadata)
        if not spec:
            continue
        lost = "" if sends_results else lost_results(spec, (mount.dst_path for mount in role.mounts))
        if lost and CALL_KEY not in role.metadata:  # what a function returns comes with the log
            yield (
                f"role {role.name!r}: Batch deletes containers with their files, so what the script writes to"
                f" {lost} is lost when it ends, but for 1 MiB that comes with its log (shunter fetch): name a"
                " place for results, as in --output s3://bucket/prefix, or for the code: -cfg code_location=s3://bucket/prefix"
            )
        script = script_of(role.args, role.metadata)
        if manifest is not None and script and not script.startswith(("/", "..")):
            problem = program_problem(manifest, script, is_executed=False)
            if problem:
                yield f"role {role.name!r}: {problem}; the job fails unless the image has it"
