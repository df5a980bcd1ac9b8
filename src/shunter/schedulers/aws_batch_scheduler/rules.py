"""What AWS Batch asks of a request beyond its model, and the check against the model itself.

Figures and patterns: the Batch API reference, and the service quotas of its user guide
(https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from shunter.errors import did_you_mean, refuse
from shunter.schedulers.aws.service_model import problems_of
from shunter.schedulers.aws_batch_scheduler.options import (
    EC2,
    FARGATE,
    PLATFORMS,
    RETRY_ANY,
    RETRY_SPOT,
    AWSBatchOpts,
)
from shunter.schedulers.aws_batch_scheduler.replicas import MOST_CHILDREN, MOST_NODES, MOST_RANGES
from shunter.specs.app import Role
from shunter.specs.training import lost_results, script_of, specification
from shunter.workspace.directory_shipment import program_problem
from shunter.workspace.manifest import Manifest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_QUEUE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}|arn:aws[\w-]*:batch:[\w-]+:\d{12}:job-queue/[\w-]{1,128}"
)
_SHARE = re.compile(r"[A-Za-z0-9]{1,255}")
_ROLE = re.compile(r"arn:aws[\w-]*:iam::\d{12}:role/[\w+=,.@/-]+")
_TAG = re.compile(r"[\w\s.:/=+\-@]*")
_VARIABLE = re.compile(r"[^=\0]+")
_LOG_GROUP = re.compile(r"[.\-_/#A-Za-z0-9]{1,512}")
_ULIMITS = frozenset(
    [
        "core",
        "cpu",
        "data",
        "fsize",
        "locks",
        "memlock",
        "msgqueue",
        "nice",
        "nofile",
        "nproc",
        "rss",
        "rtprio",
        "rttime",
        "sigpending",
        "stack",
    ]
)
MOST_TAGS = 50
LARGEST_DEFINITION = 24 * 1024
LARGEST_SUBMISSION = 30 * 1024
LEAST_MEMORY = 4

#: Fargate's sizes: vCPUs -> (least, most, step) of MiB.
FARGATE_SIZES = {
    1: (2048, 8192, 1024),
    2: (4096, 16384, 1024),
    4: (8192, 30720, 1024),
    8: (16384, 61440, 4096),
    16: (32768, 122880, 8192),
}


def check_options(opts: AWSBatchOpts) -> None:
    """Check what concerns the options alone.

    Raises:
        ConfigError: with all that is wrong.
    """
    refuse("the options of aws_batch", list(_option_problems(opts)))


def check_requests(job_def: dict[str, Any], submission: dict[str, Any]) -> None:
    """Check both requests: against the model, then against the rules that it does not hold.

    Raises:
        ConfigError: with all that is wrong.
    """
    for operation, params in (("RegisterJobDefinition", job_def), ("SubmitJob", submission)):
        found = problems_of("batch", operation, params)
        refuse(f"AWS Batch would refuse {operation}", found)
    problems = [*_definition_problems(job_def), *_submission_problems(submission)]
    refuse("AWS Batch would refuse the job", problems)


def _option_problems(opts: AWSBatchOpts) -> Iterator[str]:
    if _QUEUE.fullmatch(opts.queue) is None:
        yield f"queue {opts.queue!r} must be the name or ARN of a job queue"
    if opts.priority and opts.share_id is None:
        yield "priority needs share_id: only queues with a scheduling policy have priorities"
    if not 0 <= opts.priority <= 9999:
        yield f"priority must be from 0 to 9999, not {opts.priority}"
    if opts.share_id is not None and _SHARE.fullmatch(opts.share_id) is None:
        yield f"share_id {opts.share_id!r} must be letters and digits, at most 255"
    if opts.platform not in PLATFORMS:
        yield f"platform must be {' or '.join(PLATFORMS)}, not {opts.platform!r}"
    if opts.retry_on not in (RETRY_ANY, RETRY_SPOT):
        yield f"retry_on must be {RETRY_ANY} or {RETRY_SPOT}, not {opts.retry_on!r}"
    if opts.timeout is not None and opts.timeout < 60:
        yield f"timeout must be at least 60 seconds, not {opts.timeout}"
    if opts.log_group is not None and _LOG_GROUP.fullmatch(opts.log_group) is None:
        yield f"log_group {opts.log_group!r} is not a valid name of a log group"
    for name in ("job_role_arn", "execution_role_arn"):
        arn = getattr(opts, name)
        if arn is not None and _ROLE.fullmatch(arn) is None:
            yield f"{name} {arn!r} is not the ARN of a role, such as arn:aws:iam::123456789012:role/NAME"
    if opts.secrets and not opts.execution_role_arn:
        yield "secrets need execution_role_arn: that role reads them"
    yield from _platform_problems(opts)
    yield from _tag_problems(opts.tags or {})
    for limit in opts.ulimits or []:
        name = limit.strip().partition(":")[0]
        if name not in _ULIMITS:
            yield f"there is no ulimit {name!r}. {did_you_mean(name, _ULIMITS)}"


def _platform_problems(opts: AWSBatchOpts) -> Iterator[str]:
    if opts.platform == FARGATE and not opts.execution_role_arn:
        yield "Fargate needs execution_role_arn: that role pulls the image and writes the log"
    if opts.ephemeral_storage is not None:
        if opts.platform == EC2:
            yield "ephemeral_storage is for platform=FARGATE; on EC2 the compute environment has the disks"
        elif not 21 <= opts.ephemeral_storage <= 200:
            yield f"ephemeral_storage must be from 21 to 200 GiB, not {opts.ephemeral_storage}"
    if opts.public_ip and opts.platform == EC2:
        yield "public_ip is for platform=FARGATE; on EC2 the compute environment has the network"


def _tag_problems(tags: dict[str, str]) -> Iterator[str]:
    for key, value in tags.items():
        if not key or len(key) > 128 or _TAG.fullmatch(key) is None:
            yield f"the tag {key!r}: a key has 1 to 128 letters, digits, spaces and . : / = + - @ _"
        elif key.lower().startswith("aws:"):
            yield f"the tag {key!r}: AWS reserves the prefix aws:"
        if len(value) > 256 or _TAG.fullmatch(value) is None:
            yield f"the value of the tag {key!r}: at most 256 letters, digits, spaces and . : / = + - @ _"


def _definition_problems(job_def: dict[str, Any]) -> Iterator[str]:
    if _NAME.fullmatch(job_def["jobDefinitionName"]) is None:
        yield f"the name of the job definition {job_def['jobDefinitionName']!r} is not valid"
    yield from _tag_problems(job_def["tags"])
    tags = len(job_def["tags"]) + 1  # one more is added at registration
    if tags > MOST_TAGS:
        yield f"{tags} tags, at most {MOST_TAGS} are allowed, and 5 of them are ours"
    size = _size(job_def)
    if size > LARGEST_DEFINITION:
        yield (
            f"its job definition has {size} bytes, at most {LARGEST_DEFINITION} are allowed: arguments and "
            "environment are too large"
        )
    is_fargate = FARGATE in job_def.get("platformCapabilities", ())
    if "containerProperties" in job_def:
        yield from _container_problems(job_def["containerProperties"], is_fargate)
    else:
        yield from _node_problems(job_def["nodeProperties"])


def _node_problems(nodes: dict[str, Any]) -> Iterator[str]:
    count, ranges = nodes["numNodes"], nodes["nodeRangeProperties"]
    if not 2 <= count <= MOST_NODES:
        yield f"{count} nodes, which is not between 2 and {MOST_NODES}"
    if len(ranges) > MOST_RANGES:
        yield f"{len(ranges)} ranges of nodes, at most {MOST_RANGES} are allowed"
    if not 0 <= nodes["mainNode"] < count:
        yield f"the main node {nodes['mainNode']} is not one of the {count}"
    covered = [index for each in ranges for index in range(*node_range(each["targetNodes"], count))]
    if sorted(covered) != list(range(count)):
        shown = ", ".join(each["targetNodes"] for each in ranges)
        yield f"the ranges {shown} do not cover each of the {count} nodes exactly once"
    types = {each["container"].get("instanceType") for each in ranges}
    if len(types) > 1:
        shown = ", ".join(sorted(str(kind or "any") for kind in types))
        yield f"all nodes of a multi-node job have one instance type, and the roles ask for {shown}"
    for each in ranges:
        yield from _container_problems(each["container"], False)


def node_range(text: str, count: int) -> tuple[int, int]:
    """Return the first node of a range (``0:3``, ``:3``, ``2:`` or ``5``), and the one after its last."""
    first, colon, last = text.partition(":")
    start = int(first or 0)
    return start, (int(last) if last else count - 1) + 1 if colon else start + 1


def _container_problems(container: dict[str, Any], is_fargate: bool) -> Iterator[str]:
    needs = {each["type"]: each["value"] for each in container["resourceRequirements"]}
    memory, cpu = int(needs["MEMORY"]), int(needs["VCPU"])
    if memory < LEAST_MEMORY:
        yield f"{memory} MiB of memory, at least {LEAST_MEMORY} are needed"
    if is_fargate:
        yield from _size_problems(cpu, memory)
        if any("host" in volume for volume in container.get("volumes", ())):
            yield "Fargate has no host whose directories could be mounted (type=bind)"
    for pair in container["environment"]:
        if pair["name"].startswith("AWS_BATCH"):
            yield f"the variable {pair['name']}: AWS Batch reserves the prefix AWS_BATCH"
        if _VARIABLE.fullmatch(pair["name"]) is None:
            yield f"the variable {pair['name']!r} has no valid name"


def _size_problems(cpu: int, memory: int) -> Iterator[str]:
    if cpu not in FARGATE_SIZES:
        yield f"Fargate has {', '.join(map(str, FARGATE_SIZES))} vCPUs, not {cpu}"
        return
    least, most, step = FARGATE_SIZES[cpu]
    if memory not in range(least, most + 1, step):
        below = max(least, min(most, memory // step * step))
        above = min(most, max(least, -(-memory // step) * step))
        near = " or ".join(str(size) for size in sorted({below, above}))
        yield f"Fargate has no {cpu} vCPUs with {memory} MiB; the nearest is {near} MiB"


def _submission_problems(submission: dict[str, Any]) -> Iterator[str]:
    if _NAME.fullmatch(submission["jobName"]) is None:
        yield f"the name of the job {submission['jobName']!r} is not valid"
    size = submission.get("arrayProperties", {}).get("size")
    if size is not None and not 2 <= size <= MOST_CHILDREN:
        yield f"an array job has 2 to {MOST_CHILDREN} replicas, not {size}"
    bytes_ = _size(submission)
    if bytes_ > LARGEST_SUBMISSION:
        yield f"its submission has {bytes_} bytes, at most {LARGEST_SUBMISSION} are allowed"


def _size(params: dict[str, Any]) -> int:
    return len(json.dumps(params, separators=(",", ":"), ensure_ascii=False).encode())


def training_warnings(roles: Iterable[Role], manifest: Manifest | None) -> Iterator[str]:
    """Yield warnings for roles that run scripts under the toolkit: lost results, likely failures.

    ``manifest`` is the code that travels with the job, if any.
    """
    for role in roles:
        spec = specification(role.metadata)
        if not spec:
            continue
        if lost := lost_results(spec, (mount.dst_path for mount in role.mounts)):
            yield (
                f"role {role.name!r}: Batch deletes containers with their files, so what the script writes to"
                f" {lost} is lost when it ends: name a place for results, as in --output s3://bucket/prefix"
            )
        script = script_of(role.args, role.metadata)
        if manifest is not None and script and not script.startswith(("/", "..")):
            problem = program_problem(manifest, script, is_executed=False)
            if problem:
                yield f"role {role.name!r}: {problem}; the job fails unless the image has it"
