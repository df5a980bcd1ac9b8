from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings

from shunter.errors import ConfigError
from shunter.specs import (
    AppDef,
    BindMount,
    DeviceMount,
    RetryPolicy,
    Role,
    VolumeMount,
    from_json,
    to_json,
)
from tests.specs.strategies import apps


@settings(deadline=None, max_examples=60)
@given(apps)
def test_an_app_survives_json(app: AppDef) -> None:
    assert from_json(AppDef, json.loads(json.dumps(to_json(app)))) == app


def test_the_json_is_plain_and_readable() -> None:
    role = Role(
        "r", "i", retry_policy=RetryPolicy.ROLE, mounts=[VolumeMount("v", "/v"), DeviceMount("/d", "/d")]
    )
    data = to_json(AppDef("a", [role]))
    assert data["roles"][0]["retry_policy"] == "ROLE"
    assert type(data["roles"][0]["retry_policy"]) is str
    assert data["roles"][0]["mounts"] == [
        {"type": "volume", "src": "v", "dst_path": "/v", "read_only": False},
        {"type": "device", "src_path": "/d", "dst_path": "/d", "permissions": "rwm"},
    ]
    assert "overrides" not in data["roles"][0]


def test_fields_may_be_left_out() -> None:
    assert from_json(AppDef, {"name": "a", "roles": [{"name": "r", "image": "i"}]}) == AppDef(
        "a", [Role("r", "i")]
    )


def test_overrides_are_resolved() -> None:
    async def image() -> str:
        await asyncio.sleep(0)
        return "slow"

    role = Role("r", "old", overrides={"image": image, "num_replicas": lambda: 5})
    data = to_json(role)
    assert (data["image"], data["num_replicas"]) == ("slow", 5)


@pytest.mark.parametrize(
    ("cls", "data", "message"),
    [
        (AppDef, [], "AppDef is a JSON object, not list"),
        (AppDef, {}, "AppDef needs name"),
        (AppDef, {"name": "a", "rolls": []}, "AppDef has no field 'rolls'"),
        (AppDef, {"name": 5}, "name: 5 is not of type str"),
        (AppDef, {"name": "a", "roles": 5}, "roles: 5 is not of type list"),
        (AppDef, {"name": "a", "roles": ["r"]}, "Role is a JSON object, not str"),
        (Role, {"name": "r", "image": "i", "num_replicas": "2"}, "num_replicas: '2' is not of type int"),
        (Role, {"name": "r", "image": "i", "num_replicas": True}, "num_replicas: True is not of type int"),
        (Role, {"name": "r", "image": "i", "args": [1]}, "args[0]: 1 is not of type str"),
        (Role, {"name": "r", "image": "i", "retry_policy": "NEVER"}, "retry_policy: 'NEVER'"),
        (
            Role,
            {"name": "r", "image": "i", "mounts": [{"type": "tape"}]},
            "its type must be one of bind, volume, device",
        ),
        (Role, {"name": "r", "image": "i", "mounts": ["x"]}, "'x' is not a mount"),
        (Role, {"name": "r", "image": "i", "resource": None}, "resource: None is not of type Resource"),
        (BindMount, {"src_path": "a"}, "BindMount needs dst_path"),
        (DeviceMount, {"src_path": "a", "dst_path": "b", "permissions": "x"}, "is not one of r, w, m"),
    ],
)
def test_what_does_not_fit_is_refused(cls: Any, data: Any, message: str) -> None:
    with pytest.raises((ConfigError, ValueError)) as caught:
        from_json(cls, data)
    assert message in str(caught.value)
    assert getattr(caught.value, "exit_code", None) in (2, 3)


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"x", float("nan"), float("inf"), {1: "one", "1": "another"}]
)
def test_values_that_json_cannot_hold_are_refused(value: object) -> None:
    app = AppDef("a", [Role("r", "i", metadata={"k": [value]})])
    with pytest.raises(ConfigError, match=r"AppDef.roles\[0\].metadata\[k\]\[0\] cannot be written as JSON"):
        to_json(app)


def test_keys_that_would_change_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        to_json(AppDef("a", [Role("r", "i", metadata={"k": {1: "one", "1": "another"}})]))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_cannot_hold_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        to_json(AppDef("a", [Role("r", "i", metadata={"k": value})]))
