"""What somebody may do, by IAM's own simulator of policies: nothing is carried out.

It knows the policies of identities, permission boundaries and those of the organisation. It does not know the
policies of resources: a bucket or a key may allow a role what the simulator denies implicitly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.schedulers.aws.session import AwsSession

ALLOWED = "allowed"
EXPLICIT = "explicitDeny"
MOST_PAGES = 20


@dataclass(frozen=True)
class Decision:
    """What came of one action on one resource.

    Attributes:
        action: such as ``s3:GetObject``.
        resource: ARN of the resource, or ``*``.
        decision: ``allowed``, ``explicitDeny`` or ``implicitDeny``.
        missing: keys of conditions whose values only a real request has.
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
        """Whether a statement denies it, and nothing that only a real request has can change that."""
        return self.decision == EXPLICIT and not self.missing


def simulate(
    session: AwsSession,
    principal: str,
    actions: Iterable[str],
    resources: Iterable[str],
    context: Mapping[str, str] | None = None,
    *,
    repeats: bool = True,
) -> list[Decision]:
    """Ask what a principal may do, by one request: each action on each resource.

    Args:
        session: who asks.
        principal: ARN of a user or role.
        actions: what.
        resources: on what, as ARNs.
        context: values of condition keys, beside those that hold for every request of ours.
        repeats: whether a request that fails is repeated.

    Raises:
        AwsError: IAM refuses, does not have a simulator, or cannot be reached.
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
    found: list[Decision] = []
    for _ in range(MOST_PAGES):
        page = session.call("iam", "SimulatePrincipalPolicy", repeats=repeats, **params)
        found += map(_decision, page.get("EvaluationResults") or [])
        if not page.get("IsTruncated"):
            break
        params["Marker"] = page["Marker"]
    return found


def _decision(result: Mapping[str, Any]) -> Decision:
    return Decision(
        result["EvalActionName"],
        result.get("EvalResourceName") or "*",
        result["EvalDecision"],
        tuple(result.get("MissingContextValues") or ()),
    )
