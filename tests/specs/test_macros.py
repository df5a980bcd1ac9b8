from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from shunter.specs import BindMount, Role, macros

VALUES = macros.Values("/img", "app-1", "7", "RANK0")


def test_names() -> None:
    assert (macros.img_root, macros.base_img_root, macros.app_id, macros.replica_id, macros.rank0_env) == (
        "${img_root}",
        "${base_img_root}",
        "${app_id}",
        "${replica_id}",
        "${rank0_env}",
    )
    assert VALUES.to_dict() == {
        "img_root": "/img",
        "app_id": "app-1",
        "replica_id": "7",
        "rank0_env": "RANK0",
        "base_img_root": "DEPRECATED",
    }


def test_where_macros_are_substituted() -> None:
    role = Role(
        "${app_id}",
        "${app_id}",
        entrypoint="${app_id}",
        args=["${img_root}/x", "--id=${replica_id}"],
        env={"${app_id}": "${app_id}", "HOST": "$${rank0_env:=localhost}"},
        metadata={"a": ["${app_id}", ["${replica_id}", {"b": "${rank0_env}"}]], "n": 5, "t": ("${app_id}",)},
        mounts=[BindMount("${app_id}", "/x")],
    )
    before = copy.deepcopy(role)
    applied = VALUES.apply(role)
    assert role == before
    assert applied.args == ["/img/x", "--id=7"]
    assert applied.env == {"${app_id}": "app-1", "HOST": "${rank0_env:=localhost}"}
    assert applied.metadata == {"a": ["app-1", ["7", {"b": "RANK0"}]], "n": 5, "t": ("app-1",)}
    assert (applied.name, applied.image, applied.entrypoint) == ("${app_id}",) * 3
    assert applied.mounts == role.mounts


def test_what_is_no_macro_stays() -> None:
    for text in ("$HOME", "${HOME}", "${unknown}", "$", "a$", "${", "${}", "$(date)", "$1", "100$ 5"):
        assert VALUES.substitute(text) == text
    assert VALUES.substitute("$$") == "$"
    assert VALUES.substitute("$app_id") == "app-1"


@given(st.text())
def test_values_are_put_in_as_they_are(value: str) -> None:
    assert macros.Values("", value, "", "").substitute("<${app_id}>") == f"<{value}>"
