"""What is wrong with a job for Batch: by the service's model, and what Batch would ignore or find out late.

What RegisterJobDefinition and SubmitJob refuse at once is not repeated here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from shunter.errors import ConfigError, did_you_mean, refuse
from shunter.schedulers.aws.service_model import problems_of, shape_of
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
    ranges = (job_def.get("nodeProperties") or {}).get("nodeRangeProperties", [])
    types = {each["container"].get("instanceType") for each in ranges}
    if len(types) > 1:
        shown = ", ".join(sorted(str(kind or "any") for kind in types))
        raise ConfigError(f"all nodes of a multi-node job have one instance type; the roles ask for {shown}")


def _option_problems(opts: AWSBatchOpts) -> Iterator[str]:
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


def training_warnings(roles: Iterable[Role], manifest: Manifest | None) -> Iterator[str]:
    """Yield warnings for roles that run scripts under the toolkit: lost results, likely failures.

    ``manifest`` is the code that travels with the job, if any.
    """
    for role in roles:
        spec = specification(role.metadata)
        if not spec:
            continue
        lost = lost_results(spec, (mount.dst_path for mount in role.mounts))
        if lost and CALL_KEY not in role.metadata:  # what a function returns comes with the log
            yield (
                f"role {role.name!r}: Batch deletes containers with their files, so what the script writes to"
                f" {lost} is lost when it ends, but for 1 MiB that comes with its log (shunter fetch): name a"
                " place for results, as in --output s3://bucket/prefix"
            )
        script = script_of(role.args, role.metadata)
        if manifest is not None and script and not script.startswith(("/", "..")):
            problem = program_problem(manifest, script, is_executed=False)
            if problem:
                yield f"role {role.name!r}: {problem}; the job fails unless the image has it"
