from __future__ import annotations

import copy
import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError
from shunter.specs import (
    MISSING,
    NULL_RESOURCE,
    AppDef,
    AppDryRunInfo,
    Resource,
    RetryPolicy,
    Role,
    validate_app,
)


def test_fields_of_a_role_in_the_seeds_order() -> None:
    assert [field.name for field in dataclasses.fields(Role)] == [
        "name",
        "image",
        "min_replicas",
        "base_image",
        "entrypoint",
        "args",
        "env",
        "num_replicas",
        "max_retries",
        "retry_policy",
        "resource",
        "port_map",
        "metadata",
        "mounts",
        "overrides",
        "workspace",  # after those of the seeds
    ]
    role = Role("r", "i")
    assert (role.entrypoint, role.num_replicas, role.max_retries) == (MISSING, 1, 0)
    assert role.retry_policy is RetryPolicy.APPLICATION
    assert role.resource == NULL_RESOURCE


def test_defaults_are_not_shared() -> None:
    one, two = Role("r", "i"), Role("r", "i")
    one.args.append("x")
    one.env["a"] = "b"
    one.resource.capabilities["c"] = 1
    one.mounts.append(None)  # type: ignore[arg-type]
    assert two == Role("r", "i")
    assert NULL_RESOURCE.capabilities == {}


def test_overrides_are_resolved_once_when_read() -> None:
    calls: list[int] = []

    async def image() -> str:
        calls.append(1)
        return "late"

    role = Role("r", "early", overrides={"image": image, "args": lambda: ["a"]})
    assert calls == []
    assert (role.image, role.image, role.args) == ("late", "late", ["a"])
    assert calls == [1]


def test_overrides_survive_a_copy() -> None:
    role = Role("r", "early", overrides={"image": lambda: "late"})
    assert copy.deepcopy(role).image == "late"
    assert dataclasses.replace(role, name="s").image == "late"


def test_validate_reports_everything_at_once() -> None:
    bad = [
        Role("a", "i", num_replicas=0, max_retries=-1),
        Role("a", "i", entrypoint="x", min_replicas=2, env={"A=B": "", "": ""}),
        Role("b/c", "i", entrypoint="x", args=["nul\0"]),
        Role("", "i", entrypoint="x", min_replicas=0),
    ]
    with pytest.raises(ConfigError) as caught:
        validate_app(AppDef("job", bad))
    for text in (
        "two roles are named 'a'",
        "role 'a': it has no entrypoint",
        "num_replicas is 0; it must be at least 1",
        "max_retries is -1",
        "min_replicas 2 is not between 1 and num_replicas 1",
        "name is empty or contains '=' or NUL",
        "role 'b/c': its name contains a '/'",
        "holds a NUL byte",
        "role '': it has no name",
        "min_replicas 0",
    ):
        assert text in str(caught.value)
    with pytest.raises(ConfigError, match="it has no roles"):
        validate_app(AppDef("job"))
    validate_app(AppDef("job", [Role("a", "", entrypoint="x", num_replicas=2, min_replicas=1)]))


def test_pre_proc_leaves_the_request_alone() -> None:
    info = AppDryRunInfo({"a": 1}, lambda request: f"<{request}>")
    assert Role("r", "i").pre_proc("any", info) is info
    assert repr(info) == "<{'a': 1}>"
    assert (info.app, info.app_id, info.client_token, info.submission) == (None, None, "", None)


def test_resource_copy_adds_capabilities_and_shares_nothing() -> None:
    original = Resource(1, 2, 3, {"a": 1}, {"d": 1}, {"t": "x"})
    copied = Resource.copy(original, b=2)
    assert copied == Resource(1, 2, 3, {"a": 1, "b": 2}, {"d": 1}, {"t": "x"})
    copied.devices["e"] = 1
    copied.tags["u"] = 1
    assert original == Resource(1, 2, 3, {"a": 1}, {"d": 1}, {"t": "x"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"args": ["--lr", 0.1]}, "args[1] is of type float; it must be a text"),
        ({"args": "--lr 0.1"}, "args is of type str; it must be a list"),
        ({"env": {"N": 1}}, "env['N'] is of type int; it must be a text"),
        ({"env": {1: "N"}}, "the key 1 of env is of type int; it must be a text"),
        ({"env": None}, "env is None; it must be a dict"),
        ({"entrypoint": Path("x")}, "entrypoint is of type PosixPath; it must be a text"),
        ({"num_replicas": "2"}, "num_replicas is of type str; it must be a whole number"),
        ({"max_retries": True}, "max_retries is of type bool; it must be a whole number"),
        ({"retry_policy": "REPLICA"}, "retry_policy is of type str; it must be a RetryPolicy"),
        ({"resource": None}, "resource is None; it must be a Resource"),
        ({"resource": Resource(None, 0, 1)}, "cpu is None; it must be a number"),  # type: ignore[arg-type]
        ({"resource": Resource(1, 0, "1G")}, "memMB is of type str; it must be a number"),  # type: ignore[arg-type]
        (
            {"resource": Resource(1, 0, 1, devices={"efa": "x"})},
            "devices['efa'] is of type str; it must be a whole number",
        ),  # type: ignore[dict-item]
        ({"mounts": ["type=bind"]}, "mounts[0] is of type str; it must be a mount (see parse_mounts)"),
        ({"port_map": {"http": "80"}}, "port_map['http'] is of type str; it must be a whole number"),
    ],
)
def test_values_of_the_wrong_type_are_named(changes: dict[str, Any], said: str) -> None:
    role = Role("r", "image", **{"entrypoint": "true", **changes})
    with pytest.raises(ConfigError) as caught:
        validate_app(AppDef("job", [role]))
    assert caught.value.message == f"the job 'job' is not complete: role 'r': {said}"


def test_roles_that_are_none() -> None:
    with pytest.raises(ConfigError, match=r"roles\[0\] is of type str; it must be a Role"):
        validate_app(AppDef("job", ["r"]))  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"metadata is None; it must be a dict"):
        validate_app(AppDef("job", metadata=None))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"the job is None; it must be an AppDef"):
        validate_app(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="roles is of type Role; it must be a list"):
        validate_app(AppDef("job", Role("r", "")))  # type: ignore[arg-type]


def test_overrides_are_resolved_once_by_many_threads() -> None:
    calls: list[int] = []
    role = Role("r", "early", overrides={"image": lambda: calls.append(1) or "late"})  # type: ignore[func-returns-value]
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append(role.image)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["late"] * 16
    assert calls == [1]
