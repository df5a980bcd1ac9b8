"""IAM roles: looking them up, and reading who may assume them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
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


def trusts(document: Any, services: list[str], action: str = ASSUME) -> bool:
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


def _names(statement: dict[str, Any], services: list[str]) -> bool:
    principal = statement.get("Principal", {})
    if principal == "*":
        return True
    named = principal.get("Service", []) if isinstance(principal, dict) else []
    return any(service in services for service in _list(named))


def _covers(statement: dict[str, Any], action: str) -> bool:
    if "NotAction" in statement:
        return not _matches(statement["NotAction"], action)
    return _matches(statement.get("Action", []), action)


def _matches(patterns: Any, action: str) -> bool:
    return any(fnmatchcase(action.lower(), str(pattern).lower()) for pattern in _list(patterns))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ---- what a principal may do

ALLOWED = "allowed"
EXPLICIT = "explicitDeny"
MOST_PAGES = 20


@dataclass(frozen=True)
class PolicyDecision:
    """The simulator's answer for one action on one resource.

    Attributes:
        action: such as ``s3:GetObject``.
        resource: ARN of the resource, or ``*``.
        decision: ``allowed``, ``explicitDeny`` or ``implicitDeny``.
        missing: condition keys whose values only a real request has.
    """

    action: str
    resource: str
    decision: str
    missing: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether it is allowed."""
        return self.decision == ALLOWED

    @property
    def explicit(self) -> bool:
        """Whether a statement denies it, whatever a real request contains."""
        return self.decision == EXPLICIT and not self.missing


def simulate(
    session: AwsSession,
    principal: str,
    actions: Iterable[str],
    resources: Iterable[str],
    context: Mapping[str, str] | None = None,
    *,
    repeats: bool = True,
) -> list[PolicyDecision]:
    """Ask IAM's policy simulator which actions a principal may do on which resources. Nothing is carried out.

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
    entries = [
        {"ContextKeyName": "aws:SecureTransport", "ContextKeyValues": ["true"], "ContextKeyType": "boolean"},
        *(
            {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
            for key, value in (context or {}).items()
        ),
    ]
    params: dict[str, Any] = {
        "PolicySourceArn": principal,
        "ActionNames": list(actions),
        "ResourceArns": list(resources),
        "ContextEntries": entries,
    }
    found: list[PolicyDecision] = []
    for _ in range(MOST_PAGES):
        page = session.call("iam", "SimulatePrincipalPolicy", repeats=repeats, **params)
        found += map(_decision, page.get("EvaluationResults") or [])
        if not page.get("IsTruncated"):
            break
        params["Marker"] = page["Marker"]
    return found


def _decision(result: Mapping[str, Any]) -> PolicyDecision:
    return PolicyDecision(
        result["EvalActionName"],
        result.get("EvalResourceName") or "*",
        result["EvalDecision"],
        tuple(result.get("MissingContextValues") or ()),
    )
