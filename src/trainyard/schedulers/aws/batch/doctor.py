"""Whether jobs could run on AWS Batch: credentials, queue, roles, log group, image, and permissions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from trainyard.errors import TrainyardError
from trainyard.schedulers.aws.batch import names
from trainyard.schedulers.aws.batch.pending import look_at_queue, queue_problems
from trainyard.schedulers.aws.batch.policy import minimal_policy
from trainyard.schedulers.aws.errors import AwsError, AwsForbiddenError
from trainyard.schedulers.aws.session import AwsSession
from trainyard.schedulers.base import Check

_ECR = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[\w-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?P<name>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>sha256:[0-9a-f]+))?"
)
_CONTAINER_SERVICE = "ecs-tasks.amazonaws.com"


def examine(session: AwsSession, cfg: Mapping[str, Any]) -> list[Check]:
    """Look at everything that jobs with these options need. Changes nothing.

    Args:
        session: with what credentials, and in which region.
        cfg: options of the scheduler. What is not given is not looked at.
    """
    identity = _identity(session)
    checks = [identity[0]]
    if not checks[0].ok:
        return checks  # nothing else could be seen
    looks: list[tuple[str, Callable[[], Iterator[Check]]]] = [
        ("queue", lambda: _queue(session, cfg)),
        *((name, _role_look(session, name, cfg)) for name in ("job_role_arn", "execution_role_arn")),
        ("log group", lambda: _log_group(session, cfg)),
        ("image", lambda: _image(session, cfg)),
    ]
    for name, look in looks:
        checks += _guarded(name, look)
    checks.append(_policy(session, cfg, identity[1]))
    return checks


def _guarded(name: str, look: Callable[[], Iterator[Check]]) -> list[Check]:
    """Do one look; what is not allowed is no failure of what was to be looked at."""
    try:
        return list(look())
    except AwsForbiddenError as error:
        return [Check(name, None, f"cannot be looked at: {error.message}")]
    except TrainyardError as error:
        return [Check(name, False, error.message, error.hint)]


def _identity(session: AwsSession) -> tuple[Check, str]:
    try:
        answer = session.call("sts", "GetCallerIdentity")
    except TrainyardError as error:
        return Check("credentials", False, error.message, error.hint), ""
    arn = answer["Arn"]
    where = f" in {session.region}" if session.region else ""
    return Check("credentials", True, f"{arn}{where}"), arn


def _queue(session: AwsSession, cfg: Mapping[str, Any]) -> Iterator[Check]:
    name = cfg.get("queue")
    if not name:
        yield Check("queue", None, "not given: -cfg queue=NAME")
        return
    queue, environments = look_at_queue(session, name)
    if queue is None:
        yield Check(
            "queue",
            False,
            f"there is no queue {name} in {session.region}",
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


def _role_look(session: AwsSession, name: str, cfg: Mapping[str, Any]) -> Callable[[], Iterator[Check]]:
    return lambda: _role(session, name, cfg.get(name))


def _role(session: AwsSession, option: str, arn: str | None) -> Iterator[Check]:
    if not arn:
        return
    try:
        role = session.call("iam", "GetRole", RoleName=arn.rpartition("/")[2])["Role"]
    except AwsError as error:
        if error.code in ("NoSuchEntity", "NoSuchEntityException"):
            yield Check(option, False, f"there is no role {arn}")
            return
        raise
    if role["Arn"] != arn:
        yield Check(option, False, f"the role of this name is {role['Arn']}, not {arn}")
    elif not _trusts(role.get("AssumeRolePolicyDocument"), _CONTAINER_SERVICE):
        yield Check(
            option,
            False,
            f"containers cannot take on the role {arn}",
            f"Its trust policy must allow sts:AssumeRole to the service {_CONTAINER_SERVICE}.",
        )
    else:
        yield Check(option, True, arn)


def _trusts(document: Any, service: str) -> bool:
    """Tell whether a trust policy names a service. It comes as a dict, or as text in percent-encoding."""
    if isinstance(document, str):
        try:
            document = json.loads(unquote(document))
        except ValueError:
            return False
    statements = (document or {}).get("Statement", [])
    for statement in statements if isinstance(statements, list) else [statements]:
        principal = statement.get("Principal", {})
        services = principal.get("Service", []) if isinstance(principal, dict) else []
        if statement.get("Effect") == "Allow" and service in (
            [services] if isinstance(services, str) else services
        ):
            return True
    return False


def _log_group(session: AwsSession, cfg: Mapping[str, Any]) -> Iterator[Check]:
    name = cfg.get("log_group") or names.DEFAULT_LOG_GROUP
    pages = session.pages("logs", "DescribeLogGroups", "logGroups", logGroupNamePrefix=name)
    if any(group["logGroupName"] == name for page in pages for group in page):
        yield Check("log group", True, name)
    elif name == names.DEFAULT_LOG_GROUP:
        yield Check("log group", None, f"{name} is not there yet: Batch makes it with the first job")
    else:
        yield Check(
            "log group",
            False,
            f"there is no log group {name}: containers that write to it do not start",
            f"aws logs create-log-group --log-group-name {name}",
        )


def _image(session: AwsSession, cfg: Mapping[str, Any]) -> Iterator[Check]:
    image = cfg.get("image_repo")
    if not image:
        return
    parts = _ECR.fullmatch(image)
    if parts is None:
        yield Check("image", None, f"{image} is not in ECR, so it was not looked for")
        return
    if parts["region"] != session.region:
        yield Check("image", None, f"{image} is in {parts['region']}, so it was not looked for")
        return
    where: dict[str, Any] = {"registryId": parts["account"], "repositoryName": parts["name"]}
    try:
        if parts["tag"] or parts["digest"]:
            wanted = {"imageDigest": parts["digest"]} if parts["digest"] else {"imageTag": parts["tag"]}
            session.call("ecr", "DescribeImages", imageIds=[wanted], **where)
        else:
            session.call(
                "ecr", "DescribeRepositories", registryId=parts["account"], repositoryNames=[parts["name"]]
            )
    except AwsError as error:
        if error.code not in ("RepositoryNotFoundException", "ImageNotFoundException"):
            raise
        hint = f"aws ecr create-repository --repository-name {parts['name']}"
        is_repository = error.code == "RepositoryNotFoundException"
        what = "repository" if is_repository else "image"
        yield Check("image", False, f"there is no {what} {image}", hint if is_repository else "")
        return
    yield Check("image", True, image)


def _policy(session: AwsSession, cfg: Mapping[str, Any], identity: str) -> Check:
    parts = identity.split(":")
    partition, account = (parts[1], parts[4]) if len(parts) > 5 else ("aws", "*")
    image = _ECR.fullmatch(cfg.get("image_repo") or "")
    policy = minimal_policy(
        session.region or "*",
        account,
        names.queue_name(cfg["queue"]) if cfg.get("queue") else None,
        [cfg[name] for name in ("job_role_arn", "execution_role_arn") if cfg.get(name)],
        cfg.get("log_group") or names.DEFAULT_LOG_GROUP,
        image["name"] if image else None,
        partition,
    )
    text = f"what {identity or 'the identity'} needs at least:\n{json.dumps(policy, indent=2)}"
    return Check("policy", None, text)
