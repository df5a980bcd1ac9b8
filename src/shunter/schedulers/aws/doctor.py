"""Checks that the doctors of AWS's schedulers share: credentials, log groups, images in ECR."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from shunter.errors import ShunterError
from shunter.schedulers.api import Check
from shunter.schedulers.aws.aws_errors import AwsError, AwsForbiddenError
from shunter.schedulers.aws.session import AwsSession

ECR_IMAGE = re.compile(
    r"(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[\w-]+)\.amazonaws\.com(?:\.cn)?/"
    r"(?P<name>[^:@]+)(?::(?P<tag>[^@]+))?(?:@(?P<digest>sha256:[0-9a-f]+))?"
)


def guarded(name: str, look: Callable[[], Iterator[Check]]) -> list[Check]:
    """Run one check; a missing permission to look does not count as a failure."""
    try:
        return list(look())
    except AwsForbiddenError as error:
        return [Check(name, None, f"cannot be checked: {error.message}")]
    except ShunterError as error:
        return [Check(name, False, error.message, error.hint)]


def identity(session: AwsSession) -> tuple[Check, str]:
    """Check the credentials; returns the caller's ARN too, "" without credentials."""
    try:
        answer = session.call("sts", "GetCallerIdentity")
    except ShunterError as error:
        return Check("credentials", False, error.message, error.hint), ""
    arn = answer["Arn"]
    where = f" in {session.region}" if session.region else ""
    return Check("credentials", True, f"{arn}{where}"), arn


def partition_and_account(arn: str) -> tuple[str, str]:
    """Return partition and account of an ARN; ``aws`` and ``*`` if it is not an ARN."""
    parts = arn.split(":")
    return (parts[1], parts[4]) if len(parts) > 5 else ("aws", "*")


def log_group_exists(session: AwsSession, name: str) -> bool:
    """Tell whether a log group of this name exists."""
    pages = session.pages("logs", "DescribeLogGroups", "logGroups", logGroupNamePrefix=name)
    return any(group["logGroupName"] == name for page in pages for group in page)


def image(session: AwsSession, name: str | None) -> Iterator[Check]:
    """Check whether an image, or the repository for images, is in ECR."""
    if not name:
        return
    parts = ECR_IMAGE.fullmatch(name)
    if parts is None:
        yield Check("image", None, f"{name} is not in ECR, so it was not checked")
        return
    if parts["region"] != session.region:
        yield Check("image", None, f"{name} is in {parts['region']}, so it was not checked")
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
        yield Check("image", False, f"there is no {what} {name}", hint if is_repository else "")
        return
    yield Check("image", True, name)
