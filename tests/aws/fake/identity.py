"""STS and IAM as far as a doctor asks them: who am I, is there this role, what may I do."""

from __future__ import annotations

from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from tests.aws.fake.wire import ACCOUNT, ApiError


class Identity:
    """Who calls.

    Attributes:
        user: the caller's ARN.
        roles: names of the roles that exist.
        forbidden: actions that a policy simulation denies, patterns as ``batch:*``.
    """

    def __init__(self) -> None:
        self.user = f"arn:aws:iam::{ACCOUNT}:user/somebody"
        self.roles: set[str] = set()
        self.forbidden: set[str] = set()

    def get_caller_identity(self, params: dict[str, Any]) -> dict[str, Any]:
        return {"UserId": "AIDAEXAMPLE", "Account": ACCOUNT, "Arn": self.user}

    def get_role(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["RoleName"]
        if name not in self.roles:
            raise ApiError("NoSuchEntity", f"The role with name {name} cannot be found.", 404)
        arn = f"arn:aws:iam::{ACCOUNT}:role/{name}"
        created = datetime(2025, 1, 1, tzinfo=UTC)
        role = {
            "Path": "/",
            "RoleName": name,
            "RoleId": "AROAEXAMPLEEXAMPLE",
            "Arn": arn,
            "CreateDate": created,
        }
        return {"Role": role}

    def simulate_principal_policy(self, params: dict[str, Any]) -> dict[str, Any]:
        results = []
        for action in params["ActionNames"]:
            is_denied = any(fnmatchcase(action, pattern) for pattern in self.forbidden)
            decision = "implicitDeny" if is_denied else "allowed"
            results.append({"EvalActionName": action, "EvalResourceName": "*", "EvalDecision": decision})
        return {"EvaluationResults": results, "IsTruncated": False}
