"""IAM roles: looking them up, and reading who may assume them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote

from trainyard.schedulers.aws.errors import AwsError
from trainyard.schedulers.aws.session import AwsSession

ASSUME = "sts:AssumeRole"
TAG_SESSION = "sts:TagSession"


def find_role(session: AwsSession, name: str, *, repeats: bool = True) -> dict[str, Any] | None:
    """Return what IAM says of a role; None if there is none of this name.

    Args:
        session: whose account.
        name: its name, or its ARN.
        repeats: whether a request that fails is repeated.

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

    Conditions are not judged: what is allowed under one counts as allowed, what is denied under one does not
    count as denied.

    Args:
        document: the policy. It comes as a dict, or as text in percent-encoding.
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
