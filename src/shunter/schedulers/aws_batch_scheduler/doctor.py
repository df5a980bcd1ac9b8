"""Whether jobs could run on AWS Batch: credentials, queue, roles, log group, image, and permissions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from shunter.schedulers.api import Check
from shunter.schedulers.aws import aws_names
from shunter.schedulers.aws.doctor import (
    ECR_IMAGE,
    guarded,
    identity,
    image,
    log_group_exists,
    partition_and_account,
)
from shunter.schedulers.aws.iam import allow, find_role, policy, pushing, role_problem
from shunter.schedulers.aws.s3 import find_bucket, split_uri, url_end
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_batch_scheduler.observe import DEFAULT_LOG_GROUP, needs_of
from shunter.schedulers.aws_batch_scheduler.reasons import describe_queue, queue_problems
from shunter.schedulers.aws_batch_scheduler.request import BatchJob
from shunter.schedulers.job_images import check_images, images_of
from shunter.specs.dryrun_info import AppDryRunInfo

_CONTAINER_SERVICE = "ecs-tasks.amazonaws.com"
_LOOKING = (
    "DescribeComputeEnvironments",
    "DescribeJobDefinitions",
    "DescribeJobQueues",
    "DescribeJobs",
    "GetJobQueueSnapshot",
    "ListJobs",
)
_SUBMITTING = ("DeregisterJobDefinition", "RegisterJobDefinition", "SubmitJob", "TagResource", "TerminateJob")


def examine(session: AwsSession, cfg: Mapping[str, Any]) -> list[Check]:
    """Check everything that jobs with these options need; missing ones are not checked. Changes nothing."""
    credentials, who = identity(session)
    checks = [credentials]
    if not credentials.ok:
        return checks  # nothing else can be checked
    looks: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("queue", lambda: _queue(session, cfg)),
        *(
            (name, partial(_role, session, name, cfg.get(name)))
            for name in ("job_role_arn", "execution_role_arn")
        ),
        ("log group", lambda: _log_group(session, cfg)),
        ("image", lambda: image(session, cfg.get("image_repo"))),
        ("code_location", lambda: _code_location(session, cfg.get("code_location"))),
    ]
    for name, look in looks:
        checks += guarded(name, look)
    checks.append(_policy(session, cfg, who))
    return checks


def examine_job(session: AwsSession, info: AppDryRunInfo[BatchJob]) -> list[Check]:
    """Check whether hosts of the queue could hold the job's replicas, and whether its images are there."""
    job = info.request
    checks = guarded("the job", lambda: _fits(session, job))
    in_ecr = [each for each in images_of(info) if ECR_IMAGE.fullmatch(each)]
    for each in in_ecr:
        checks += guarded("image", partial(image, session, each))
    return [*checks, *(check for check in check_images(info) if check.name.partition(" ")[2] not in in_ecr)]


def _fits(session: AwsSession, job: BatchJob) -> Iterator[Check]:
    queue, environments = describe_queue(session, job.submission["jobQueue"])
    if queue is None:
        yield Check("the job", False, f"there is no job queue {job.queue} in {session.region}")
        return
    nodes = (job.job_def.get("nodeProperties") or {}).get("nodeRangeProperties", [])
    containers = [each["container"] for each in nodes] or [job.job_def["containerProperties"]]
    problems = {
        problem: None
        for container in containers
        for problem in queue_problems(queue, environments, needs_of(container))
    }
    fits = "a host of its queue could hold a replica, judging by the instance types"
    yield Check("the job", not problems, "; ".join(problems) or fits)


def _queue(session: AwsSession, cfg: Mapping[str, Any]) -> Iterator[Check]:
    name = cfg.get("queue")
    if not name:
        yield Check("queue", None, "not given: -cfg queue=NAME")
        return
    queue, environments = describe_queue(session, name)
    if queue is None:
        yield Check(
            "queue",
            False,
            f"there is no job queue {name} in {session.region}",
            "`aws batch describe-job-queues` lists them; another region is -cfg region=...",
        )
        return
    problems = list(queue_problems(queue, environments, {}))
    kinds = ", ".join(
        str((each.get("computeResources") or {}).get("type", each.get("type", "?"))) for each in environments
    )
    text = "; ".join(problems) or f"{queue['jobQueueName']} is enabled and valid ({kinds})"
    yield Check("queue", not problems, text)
    yield from _shares(queue, cfg)
    platform = cfg.get("platform") or "EC2"
    fitting = [each for each in environments if _runs(each, platform)]
    if environments and not fitting:
        yield Check("platform", False, f"no compute environment of the queue runs {platform} jobs ({kinds})")


def _runs(environment: Mapping[str, Any], platform: str) -> bool:
    kind = str((environment.get("computeResources") or {}).get("type", ""))
    return kind.startswith("FARGATE") == (platform == "FARGATE") if kind else platform == "EC2"


def _shares(queue: Mapping[str, Any], cfg: Mapping[str, Any]) -> Iterator[Check]:
    has_policy, share = bool(queue.get("schedulingPolicyArn")), cfg.get("share_id")
    if has_policy and not share:
        yield Check(
            "share_id", False, "the queue has a scheduling policy, so jobs need a share", "-cfg share_id=NAME"
        )
    elif share and not has_policy:
        yield Check(
            "share_id",
            False,
            "the queue has no scheduling policy, so it takes no share",
            "Leave share_id out.",
        )


def _role(session: AwsSession, option: str, arn: str | None) -> Iterator[Check]:
    if not arn:
        return
    problem = role_problem(find_role(session, arn), arn, [_CONTAINER_SERVICE])
    yield Check(option, True, arn) if problem is None else Check(option, False, *problem)


def _log_group(session: AwsSession, cfg: Mapping[str, Any]) -> Iterator[Check]:
    name = cfg.get("log_group") or DEFAULT_LOG_GROUP
    if log_group_exists(session, name):
        yield Check("log group", True, name)
    elif name == DEFAULT_LOG_GROUP:
        yield Check("log group", None, f"{name} does not exist yet: Batch creates it with the first job")
    else:
        yield Check(
            "log group",
            False,
            f"there is no log group {name}: containers that write to it do not start",
            f"aws logs create-log-group --log-group-name {name}",
        )


def _code_location(session: AwsSession, location: str | None) -> Iterator[Check]:
    if not location:
        return
    bucket, end = split_uri(location)[0], url_end(session)
    if find_bucket(session, bucket) is None:
        yield Check("code_location", False, f"there is no bucket {bucket}", f"aws s3 mb s3://{bucket}")
        return
    text = f"jobs that are submitted now can fetch their code until {end.astimezone():%Y-%m-%d %H:%M}"
    if session.credentials_end()[0]:
        hint = (
            "The credentials are temporary, and the URLs end with them. With a user's own they last 7 days."
        )
        yield Check("code_location", None, text, hint)
    else:
        yield Check("code_location", True, text)


def _policy(session: AwsSession, cfg: Mapping[str, Any], who: str) -> Check:
    """Show the least permissions for jobs with these options."""
    partition, account = partition_and_account(who)
    place = f"{session.region or '*'}:{account}"
    batch = f"arn:{partition}:batch:{place}"
    queue = aws_names.queue_name(cfg.get("queue") or "*")
    group = f"arn:{partition}:logs:{place}:log-group:{cfg.get('log_group') or DEFAULT_LOG_GROUP}"
    statements = [
        allow("Look", [f"batch:{name}" for name in _LOOKING], ["*"]),  # Batch takes no resource for these
        allow(
            "Submit",
            [f"batch:{name}" for name in _SUBMITTING],
            [f"{batch}:job-queue/{queue}", f"{batch}:job-definition/*", f"{batch}:job/*"],
        ),
        allow(
            "ReadLogs",
            ["logs:DeleteLogStream", "logs:FilterLogEvents", "logs:GetLogEvents"],
            [group, f"{group}:*"],
        ),
    ]
    if roles := [cfg[name] for name in ("execution_role_arn", "job_role_arn") if cfg.get(name)]:
        statements.append(allow("PassRoles", ["iam:PassRole"], roles, PassedToService=_CONTAINER_SERVICE))
    if location := cfg.get("code_location"):
        bucket, prefix = split_uri(location)
        objects = f"arn:{partition}:s3:::{'/'.join(filter(None, (bucket, prefix)))}/*"
        statements.append(
            allow("Code", ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"], [objects])
        )
        statements.append(allow("Buckets", ["s3:ListBucket"], [f"arn:{partition}:s3:::{bucket}"]))
    if repository := ECR_IMAGE.fullmatch(cfg.get("image_repo") or ""):
        statements += pushing(f"arn:{partition}:ecr:{place}:repository/{repository['name']}")
    text = f"what {who or 'the identity'} needs at least:\n{json.dumps(policy(statements), indent=2)}"
    return Check("policy", None, text)
