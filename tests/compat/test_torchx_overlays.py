"""TorchX's functions for overlays: what users of its Kubernetes scheduler write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shunter.compat.torchx.specs import AppDef, Role
from shunter.compat.torchx.specs.overlays import DEL, JOIN, PUT, apply_overlay, get_overlay, set_overlay

PODS = JOIN("containers", on="name")


def laid_over(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
    apply_overlay(base, overlay)
    return base


def kept(*overlays: dict[str, Any]) -> dict[str, Any]:
    role = Role("r", "img")
    for overlay in overlays:
        set_overlay(role, "kubernetes", "V1Pod", overlay)
    return get_overlay(role, "kubernetes", "V1Pod")


def test_a_tuple_replaces_a_list() -> None:
    assert laid_over({"a": [1, 2]}, {"a": (3,)}) == {"a": [3]}
    assert laid_over({}, {"a": (3,)}) == {"a": [3]}
    assert laid_over({"a": [1]}, kept({"a": [2]}, {"a": (3,)}, {"a": [4]})) == {"a": [3, 4]}


@pytest.mark.parametrize(
    ("base", "overlay", "expected"),
    [
        ({PUT("a"): [1]}, {"a": [2]}, {"a": [2]}),
        ({PODS: [{"name": "m"}]}, {DEL("containers"): None}, {}),
        ({DEL("a"): None}, {PUT("a"): 1}, {"a": 1}),
        ({"a": [1], DEL("b"): None}, {"a": [2]}, {"a": [1, 2], DEL("b"): None}),
    ],
)
def test_the_last_word_on_a_field_wins(
    base: dict[str, Any], overlay: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert laid_over(base, overlay) == expected


def test_what_is_kept_adds_up() -> None:
    assert kept({"a": [1]}, {PUT("a"): [2]}) == {PUT("a"): [2]}
    assert kept({PUT("a"): [2]}, {"a": [3]}) == {"a": [3]}
    one, two = (
        {"spec": {PODS: [{"name": "m", "tty": True}]}},
        {"spec": {PODS: [{"name": "m", "stdin": True}]}},
    )
    both = kept(one, two)
    assert both == {"spec": {PODS: [{"name": "m", "tty": True}, {"name": "m", "stdin": True}]}}
    made = laid_over({"spec": {"containers": [{"name": "m", "image": "i"}]}}, both)
    assert made == {"spec": {"containers": [{"name": "m", "image": "i", "tty": True, "stdin": True}]}}


@pytest.mark.parametrize("items", [{"name": "m"}, ["m"], "m"])
def test_only_lists_of_mappings_are_joined(items: Any) -> None:
    with pytest.raises(TypeError, match="containers is not a list of mappings"):
        apply_overlay({"containers": [{"name": "m"}]}, {PODS: items})
    if items != {"name": "m"}:
        with pytest.raises(TypeError, match="containers is not a list of mappings"):
            apply_overlay({"containers": items}, {PODS: [{"name": "m"}]})


def test_overlays_by_kind_and_one_without_kinds() -> None:
    app = AppDef("a", [], metadata={"s": {"JobSpec": {"x": 1}, "JobConfig": {"y": 2}}})
    assert get_overlay(app, "s", "JobConfig") == {"y": 2}
    assert get_overlay(app, "s", "V1Pod") == {}
    app.metadata["s"] = {"spec": {"x": 1}, "apiVersion": "v1"}
    assert get_overlay(app, "s", "V1Pod") == app.metadata["s"]
    app.metadata["s"] = "left over"
    set_overlay(app, "s", "V1Pod", {"x": 1})
    assert app.metadata["s"] == {"V1Pod": {"x": 1}}
    app.metadata["s"] = 5
    assert get_overlay(app, "s", "V1Pod") == {}


def test_overlays_in_files(tmp_path: Path) -> None:
    role = Role("r", "img")
    (tmp_path / "o.yaml").write_text("spec:\n  tolerations: !!python/tuple\n    - key: gpu\n")
    (tmp_path / "o.json").write_text(json.dumps({"V1Pod": {"spec": {"x": 1}}}))
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "code.yaml").write_text("a: !!python/object/apply:os.getcwd []\n")
    role.metadata["kubernetes"] = f"file://{tmp_path / 'o.yaml'}"
    assert get_overlay(role, "kubernetes", "V1Pod") == {"spec": {"tolerations": ({"key": "gpu"},)}}
    role.metadata["kubernetes"] = str(tmp_path / "o.json")
    assert get_overlay(role, "kubernetes", "V1Pod") == {"spec": {"x": 1}}
    role.metadata["kubernetes"] = str(tmp_path / "list.json")
    with pytest.raises(ValueError, match=r"list\.json holds a list"):
        get_overlay(role, "kubernetes", "V1Pod")
    role.metadata["kubernetes"] = str(tmp_path / "code.yaml")
    with pytest.raises(Exception, match="could not determine a constructor"):
        get_overlay(role, "kubernetes", "V1Pod")
