"""Who may assume a role, by its trust policy."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from shunter.schedulers.aws.iam import ASSUME, TAG_SESSION, trusts

SERVICE = "ecs-tasks.amazonaws.com"


def statement(**changes: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": ASSUME, "Principal": {"Service": SERVICE}, **changes}


def policy(*statements: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": list(statements)}


@pytest.mark.parametrize(
    ("document", "trusted"),
    [
        (policy(statement()), True),
        ({"Statement": statement()}, True),
        (quote(json.dumps(policy(statement()))), True),
        (policy(statement(Principal={"Service": ["a", SERVICE]})), True),
        (policy(statement(Action=["sts:TagSession", "sts:AssumeRole"])), True),
        (policy(statement(Action="sts:*")), True),
        (policy(statement(Action="STS:assumerole")), True),
        (policy(statement(Principal="*")), True),
        (policy(statement(Condition={"StringEquals": {"aws:SourceAccount": "1"}})), True),
        (policy(statement(), statement(Effect="Deny", Condition={"Bool": {"x": "true"}})), True),
        (policy(statement(Action="sts:AssumeRoleWithSAML")), False),
        (policy(statement(Action="sts:TagSession")), False),
        (policy(statement(Principal={"Service": "ec2.amazonaws.com"})), False),
        (policy(statement(Principal={"AWS": "arn:aws:iam::1:root"})), False),
        (policy(statement(), statement(Effect="Deny")), False),
        ("%7B", False),
        (None, False),
    ],
)
def test_trust(document: Any, trusted: bool) -> None:
    assert trusts(document, [SERVICE]) is trusted


def test_each_action_is_looked_for() -> None:
    both = policy(statement(Action=[ASSUME, TAG_SESSION]))
    assert trusts(both, [SERVICE], TAG_SESSION)
    assert not trusts(policy(statement()), [SERVICE], TAG_SESSION)
    assert trusts(policy(statement(), statement(Action=TAG_SESSION)), ["other", SERVICE], TAG_SESSION)
