"""Rights that a job would lack, found out before anything is uploaded: to be its role, and of its role.

Few calls are made, and only where the job would fail late or lose what it has done: whether SageMaker may
assume the role, and whether a job that is started again can read its checkpoints back. What the caller may
not look at is said, and no hindrance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainyard.errors import ConfigError
from trainyard.schedulers.aws import s3
from trainyard.schedulers.aws.errors import AwsCredentialsError, AwsError
from trainyard.schedulers.aws.roles import ASSUME, TAG_SESSION, find_role, trusts
from trainyard.schedulers.aws.session import AwsSession
from trainyard.schedulers.aws.simulation import Decision, simulate

if TYPE_CHECKING:
    from trainyard.workspace.progress import Progress

LIST = "s3:ListBucket"
READ = "s3:GetObject"
WRITE = "s3:PutObject"
#: The ends of service names where they are not amazonaws.com.
_ENDS = {"aws-cn": "amazonaws.com.cn", "aws-iso": "c2s.ic.gov", "aws-iso-b": "sc2s.sgov.gov"}


# ---- who may be the role


def services(arn: str) -> list[str]:
    """Return what SageMaker may be called in the trust policy of a role."""
    end = _ENDS.get(arn.partition(":")[2].partition(":")[0])
    return ["sagemaker.amazonaws.com", *([f"sagemaker.{end}"] if end else [])]


def trust_problem(role: Mapping[str, Any], request: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what SageMaker may not do with a role that a request needs, and what to do; None if all is well.

    Args:
        role: what IAM says of it.
        request: the request, or what of it there is.
    """
    document = role.get("AssumeRolePolicyDocument")
    if not document:
        return None  # not told
    chaining = bool((request.get("SessionChainingConfig") or {}).get("EnableSessionTagChaining"))
    # developer guide, "Use attribute-based access control (ABAC) for multi-tenancy training"
    wanted = [ASSUME, *([TAG_SESSION] if chaining else [])]
    accepted = services(role["Arn"])
    missing = [action for action in wanted if not trusts(document, accepted, action)]
    if not missing:
        return None
    statement = {"Effect": "Allow", "Principal": {"Service": accepted[0]}, "Action": wanted}
    why = ", which enable_session_tag_chaining needs" if missing == [TAG_SESSION] else ""
    what = (
        f"SageMaker may not use the role {role['Arn']}: its trust policy does not allow "
        f"{' and '.join(missing)} to {accepted[0]}{why}"
    )
    return what, f"Add to its trust policy: {json.dumps(statement)}"


def check_trust(role: Mapping[str, Any], request: Mapping[str, Any]) -> None:
    """Refuse a role that SageMaker may not use as a request needs it.

    Raises:
        ConfigError: it may not.
    """
    problem = trust_problem(role, request)
    if problem is not None:
        raise ConfigError(problem[0], hint=problem[1])


def look_at_trust(session: AwsSession, request: Mapping[str, Any], progress: Progress) -> None:
    """Do the same where the role's ARN is known already, if the caller may look it up.

    Raises:
        ConfigError: there is no such role, or SageMaker may not use it.
        AwsCredentialsError: there are no valid credentials.
    """
    arn = request["RoleArn"]
    try:
        role = find_role(session, arn, repeats=False)
    except AwsCredentialsError:
        raise
    except AwsError as error:
        progress.done(f"warning: the trust policy of {arn} was not looked at: {error.message}")
        return
    if role is None:
        raise ConfigError(
            f"there is no IAM role {arn} in the account of these credentials", hint="Give another role."
        )
    if role["Arn"] != arn:
        raise ConfigError(
            f"the role of this name is {role['Arn']}, not {arn}", hint=f"-cfg role={role['Arn']}"
        )
    check_trust(role, request)


# ---- what the role may do with checkpoints


def look_at_checkpoints(session: AwsSession, role: str, uri: str, progress: Progress) -> None:
    """Refuse a job that could not read its checkpoints back when it is started again.

    Args:
        session: who asks.
        role: ARN of the job's role.
        uri: where the checkpoints are: ``s3://bucket/prefix``.
        progress: is told what could not be found out.

    Raises:
        ConfigError: the role may not, and nothing else could allow it; or there is no such bucket.
        AwsCredentialsError: there are no valid credentials.
    """
    denied = _denied(session, role, uri, progress)
    if not denied:
        return
    firm = [decision for decision in denied if not decision.missing]
    actions = ", ".join(decision.action for decision in firm or denied)
    explicit = any(decision.explicit for decision in firm)
    if not firm:
        keys = ", ".join(sorted({key for decision in denied for key in decision.missing}))
        doubt = f"whether they do depends on {keys}, which only the job's own requests have"
    else:
        doubt = "" if explicit else bucket_doubt(session, s3.split_uri(uri)[0], role.split(":")[4])
    if doubt:
        progress.done(f"warning: the policies of {role} do not allow {actions} on {uri}; {doubt}")
        return
    why = "a statement denies it" if explicit else "no statement allows it"
    narrow = "Narrow the statement that denies it. " if explicit else ""
    raise ConfigError(
        f"the role {role} may not {actions} on {uri} ({why}), so a job that is started again "
        "(max_retry_attempts, use_spot_instances) could not go on from its checkpoints",
        hint=f"{narrow}The role's policy needs: {json.dumps(statements(role, uri))}",
    )


def statements(role: str, uri: str) -> list[dict[str, Any]]:
    """Return what a role's policy has to say for checkpoints."""
    bucket, objects = _resources(role, uri)
    return [
        {"Effect": "Allow", "Action": [READ, WRITE], "Resource": objects},
        {"Effect": "Allow", "Action": LIST, "Resource": bucket},
    ]


def _resources(role: str, uri: str) -> tuple[str, str]:
    bucket, key = s3.split_uri(uri)
    arn = f"arn:{role.split(':')[1]}:s3:::{bucket}"
    return arn, f"{arn}/{key}/*" if key else f"{arn}/*"


def _denied(session: AwsSession, role: str, uri: str, progress: Progress) -> list[Decision]:
    """Return what is not allowed by the role's policies; nothing if that cannot be found out."""
    bucket, objects = _resources(role, uri)
    key = s3.split_uri(uri)[1]
    wanted = {(READ, objects), (WRITE, objects), (LIST, bucket)}
    try:
        decisions = simulate(
            session,
            role,
            [READ, WRITE, LIST],
            [bucket, objects],
            {"s3:prefix": f"{key}/" if key else ""},
            repeats=False,
        )
    except AwsCredentialsError:
        raise
    except AwsError as error:
        progress.done(f"warning: the rights of {role} to {uri} were not looked at: {error.message}")
        return []
    return [each for each in decisions if (each.action, each.resource) in wanted and not each.allowed]


def bucket_doubt(session: AwsSession, bucket: str, account: str) -> str:
    """Return why a bucket may allow what an identity's policies do not; "" if it allows nothing by itself.

    Args:
        session: who asks.
        bucket: its name.
        account: number of the account of the identity.

    Raises:
        ConfigError: there is no such bucket.
    """
    try:
        found = s3.find_bucket(session, bucket, account)
    except AwsError:
        return f"the bucket {bucket} is another account's or cannot be looked at, and its policy may"
    if found is None:
        raise ConfigError(f"there is no bucket {bucket}", hint="Make it, or give another one.")
    try:
        session.call("s3", "GetBucketPolicy", Bucket=bucket)
    except AwsError as error:
        if error.code == "NoSuchBucketPolicy":
            return ""
        return f"the policy of the bucket {bucket} cannot be looked at, and may"
    return f"the bucket {bucket} has a policy of its own, which may"
