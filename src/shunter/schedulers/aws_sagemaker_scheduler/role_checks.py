"""Checks of a job's role before anything is uploaded: what it may not do would show only when the job runs.

SageMaker has to be able to assume the role, and a job that is restarted to read its checkpoints. What the
caller may not look up is reported, but does not stop the submission.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shunter.errors import ConfigError
from shunter.progress import Progress
from shunter.schedulers.aws import s3
from shunter.schedulers.aws.aws_errors import AwsCredentialsError, AwsError, AwsForbiddenError
from shunter.schedulers.aws.iam import ASSUME, TAG_SESSION, allow, denied, find_role, role_problem
from shunter.schedulers.aws.session import AwsSession

#: The ends of service names where they are not amazonaws.com.
_ENDS = {"aws-cn": "amazonaws.com.cn", "aws-iso": "c2s.ic.gov", "aws-iso-b": "sc2s.sgov.gov"}


def problem_of(
    role: Mapping[str, Any] | None, given: str, *, tag_chaining: bool = False
) -> tuple[str, str] | None:
    """Return why SageMaker cannot use a role, and what to do; see `iam.role_problem`.

    ``tag_chaining`` tells whether the submitter's session tags are passed on: developer guide, "Use
    attribute-based access control (ABAC) for multi-tenancy training".
    """
    services = ["sagemaker.amazonaws.com"]
    if role is not None and (end := _ENDS.get(role["Arn"].split(":")[1])):
        services.append(f"sagemaker.{end}")
    problem = role_problem(role, given, services, [ASSUME, *([TAG_SESSION] if tag_chaining else [])])
    if problem is not None and problem[0].endswith(TAG_SESSION):
        return f"{problem[0]}, which enable_session_tag_chaining needs", problem[1]
    return problem


def checked_arn(session: AwsSession, given: str, request: Mapping[str, Any], progress: Progress) -> str:
    """Return the ARN of a role, given by name or ARN, that SageMaker can use for a request.

    Raises:
        ConfigError: SageMaker cannot use it, or it does not exist.
        AwsError: it is given by name, and cannot be looked up.
    """
    is_arn = given.startswith("arn:")
    try:
        role = find_role(session, given, repeats=not is_arn)
    except AwsCredentialsError:
        raise
    except AwsError as error:
        if is_arn:
            progress.done(f"warning: the trust policy of {given} was not checked: {error.message}")
            return given
        if not isinstance(error, AwsForbiddenError):
            raise
        raise AwsForbiddenError(
            f"the ARN of the role {given!r} cannot be looked up: {error.message}",
            hint="Give the role's ARN: -cfg role=arn:aws:iam::ACCOUNT:role/NAME.",
            operation=error.operation,
            code=error.code,
        ) from None
    chaining = (request.get("SessionChainingConfig") or {}).get("EnableSessionTagChaining", False)
    problem = problem_of(role, given, tag_chaining=chaining)
    if role is None or problem is not None:
        what, hint = problem or ("", "")
        raise ConfigError(what, hint=hint)
    return str(role["Arn"])


def check_checkpoints(session: AwsSession, role: str, uri: str, progress: Progress) -> None:
    """Refuse a job that could not read its checkpoints back when it is restarted."""
    bucket, key = s3.split_uri(uri)
    whole = f"arn:{role.split(':')[1]}:s3:::{bucket}"
    objects = "/".join(filter(None, [whole, key, "*"]))
    actions = {"s3:GetObject": objects, "s3:PutObject": objects, "s3:ListBucket": whole}
    prefix = {"s3:prefix": f"{key}/" if key else ""}
    try:
        denials = [
            denial
            for denial in denied(session, role, list(actions), [whole, objects], prefix, repeats=False)
            if denial.resource == actions[denial.action]
        ]
    except AwsCredentialsError:
        raise
    except AwsError as error:
        progress.done(f"warning: the permissions of {role} to {uri} were not checked: {error.message}")
        return
    if not denials:
        return
    explicit = any(denial.explicit for denial in denials)
    lacking = ", ".join(denial.action for denial in denials)
    keys = ", ".join(sorted({key for denial in denials for key in denial.missing}))
    doubt = f"whether they do depends on {keys}, which only the job's own requests have" if keys else ""
    if not explicit and not doubt and bucket_may_allow(session, bucket, role.split(":")[4]):
        doubt = f"the policy of the bucket {bucket} may"
    if doubt and not explicit:
        progress.done(f"warning: the policies of {role} do not allow {lacking} on {uri}; {doubt}")
        return
    why = "a statement denies it" if explicit else "no statement allows it"
    narrow = "Narrow the statement that denies it. " if explicit else ""
    needed = [
        allow("Checkpoints", ["s3:GetObject", "s3:PutObject"], [objects]),
        allow("ListCheckpoints", ["s3:ListBucket"], [whole]),
    ]
    raise ConfigError(
        f"the role {role} may not {lacking} on {uri} ({why}), so a job that is restarted "
        "(max_retry_attempts, use_spot_instances) could not continue from its checkpoints",
        hint=f"{narrow}The role's policy needs: {json.dumps(needed)}",
    )


def bucket_may_allow(session: AwsSession, bucket: str, account: str) -> bool:
    """Tell whether a bucket's own policy may allow what the policies of an account's identity do not.

    Raises:
        ConfigError: there is no such bucket.
    """
    try:
        session.call("s3", "GetBucketPolicy", Bucket=bucket, ExpectedBucketOwner=account)
    except AwsError as error:
        if error.code == "NoSuchBucket":
            raise ConfigError(
                f"there is no bucket {bucket}", hint="Create it, or give another one."
            ) from None
        return error.code != "NoSuchBucketPolicy"  # another account's, or it may not be read
    return True
