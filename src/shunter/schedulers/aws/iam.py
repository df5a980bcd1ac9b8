"""IAM: who may assume a role, policies as they are printed, and the simulator of what a principal may do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import unquote

from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws.session import AwsSession

ASSUME = "sts:AssumeRole"
TAG_SESSION = "sts:TagSession"


def find_role(session: AwsSession, name: str, *, repeats: bool = True) -> dict[str, Any] | None:
    """Return IAM's description of a role, given by name or ARN; None if it does not exist.

    A failed request is not repeated unless ``repeats``.

    Raises:
        AwsError: IAM refuses or cannot be reached.
    """
    try:
        answer = session.call("iam", "GetRole", repeats=repeats, RoleName=name.rpartition("/")[2])
    except AwsError as error:
        if error.code not in ("NoSuchEntity", "NoSuchEntityException"):
            raise
        return None
    role: dict[str, Any] = answer["Role"]
    return role


def role_problem(
    role: Mapping[str, Any] | None, given: str, services: Sequence[str], actions: Sequence[str] = (ASSUME,)
) -> tuple[str, str] | None:
    """Return what is wrong with a role that a service is to use, and what to do; None if nothing is.

    Args:
        role: IAM's description; None if there is no such role.
        given: the name or ARN by which it was looked up.
        services: names of the service, of which the trust policy has to name one.
        actions: what the service does with it.
    """
    if role is None:
        return f"there is no IAM role {given}", "`aws iam list-roles` lists them."
    arn = role["Arn"]
    if given.startswith("arn:") and arn != given:
        return f"the role of this name is {arn}, not {given}", "Give that ARN."
    document = role.get("AssumeRolePolicyDocument")
    missing = [action for action in actions if document and not trusts(document, services, action)]
    if not missing:
        return None
    statement = {"Effect": "Allow", "Principal": {"Service": services[0]}, "Action": list(actions)}
    return (
        f"{services[0]} may not use the role {arn}: its trust policy does not allow {' and '.join(missing)}",
        f"Add to its trust policy: {json.dumps(statement)}",
    )


def trusts(document: Any, services: Sequence[str], action: str = ASSUME) -> bool:
    """Tell whether a trust policy lets a service do something with the role.

    Conditions are ignored: an Allow with a condition counts, a Deny with a condition does not.

    Args:
        document: the policy, as a dict or as percent-encoded text.
        services: the service's names, such as ``sagemaker.amazonaws.com``; one of them is enough.
        action: such as ``sts:AssumeRole``.
    """
    allowed = False
    for statement in _statements(document):
        if not _names(statement, services) or not _covers(statement, action):
            continue
        if statement.get("Effect") == "Deny" and not statement.get("Condition"):
            return False
        allowed = allowed or statement.get("Effect") == "Allow"
    return allowed


def _statements(document: Any) -> Iterator[dict[str, Any]]:
    if isinstance(document, str):
        try:
            document = json.loads(unquote(document))
        except ValueError:
            return
    statements = (document or {}).get("Statement", [])
    yield from statements if isinstance(statements, list) else [statements]


def _names(statement: dict[str, Any], services: Sequence[str]) -> bool:
    principal = statement.get("Principal", {})
    if principal == "*":
        return True
    named = principal.get("Service", []) if isinstance(principal, dict) else []
    return any(service in services for service in _list(named))


def _covers(statement: dict[str, Any], action: str) -> bool:
    patterns = _list(statement.get("Action", []))
    return any(fnmatchcase(action.lower(), str(pattern).lower()) for pattern in patterns)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ---- policies


def allow(sid: str, actions: Sequence[str], resources: Sequence[str], **equal: str) -> dict[str, Any]:
    """Return the statement of a policy that allows something; ``equal`` are values of keys of ``iam:``."""
    condition = {"StringEquals": {f"iam:{key}": value for key, value in equal.items()}}
    return {
        "Sid": sid,
        "Effect": "Allow",
        "Action": sorted(actions),
        "Resource": list(resources),
        **({"Condition": condition} if equal else {}),
    }


def policy(statements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return statements as a policy document."""
    return {"Version": "2012-10-17", "Statement": list(statements)}


PULL = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
_PUSH = ("ecr:CompleteLayerUpload", "ecr:InitiateLayerUpload", "ecr:PutImage", "ecr:UploadLayerPart")
LOG_IN = allow("LogInToRegistry", ["ecr:GetAuthorizationToken"], ["*"])


def pushing(repository: str) -> list[dict[str, Any]]:
    """Return the statements that let images be pushed to a repository, given by its ARN."""
    return [LOG_IN, allow("PushImages", [*PULL, *_PUSH], [repository])]


# ---- what a principal may do


class Denial(NamedTuple):
    """An action that the simulator does not allow.

    Attributes:
        action: such as ``s3:GetObject``.
        resource: ARN of the resource, or ``*``.
        explicit: whether a statement denies it, whatever else may allow it.
        missing: condition keys whose values only a real request has.
    """

    action: str
    resource: str
    explicit: bool
    missing: tuple[str, ...] = ()


def denied(
    session: AwsSession,
    principal: str,
    actions: Sequence[str],
    resources: Sequence[str],
    context: Mapping[str, str] | None = None,
    *,
    repeats: bool = True,
) -> list[Denial]:
    """Ask IAM's policy simulator what a principal may not do. Nothing is carried out.

    It knows identity policies, permission boundaries and those of the organisation, but not resource
    policies: a bucket or key may allow what the simulator denies implicitly.

    Args:
        session: the caller's session.
        principal: ARN of a user or role.
        actions: the actions.
        resources: ARNs of the resources.
        context: values of condition keys, in addition to those of every request.
        repeats: whether a failed request is repeated.

    Raises:
        AwsError: IAM refuses, has no simulator, or cannot be reached.
    """
    entries = [("aws:SecureTransport", "true", "boolean")]
    entries += [(key, value, "string") for key, value in (context or {}).items()]
    params: dict[str, Any] = {
        "PolicySourceArn": principal,
        "ActionNames": list(actions),
        "ResourceArns": list(resources),
        "ContextEntries": [
            {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": kind}
            for key, value, kind in entries
        ],
    }
    denials: list[Denial] = []
    for page in session.pages(
        "iam", "SimulatePrincipalPolicy", "EvaluationResults", repeats=repeats, **params
    ):
        for result in page:
            if (decision := result["EvalDecision"]) != "allowed":
                missing = tuple(result.get("MissingContextValues") or ())
                explicit = decision == "explicitDeny" and not missing
                resource = result.get("EvalResourceName") or "*"
                denials.append(Denial(result["EvalActionName"], resource, explicit, missing))
    return denials
