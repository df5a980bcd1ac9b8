"""TorchX's functions for overlays: what users of its Kubernetes scheduler write."""

from __future__ import annotations

from typing import Any

from shunter.compat.torchx.specs import AppDef, Role
from shunter.compat.torchx.specs.overlays import JOIN, PUT, apply_overlay, get_overlay, set_overlay

PODS = JOIN("containers", on="name")


def kept(*overlays: dict[str, Any]) -> dict[str, Any]:
    role = Role("r", "img")
    for overlay in overlays:
        set_overlay(role, "kubernetes", "V1Pod", overlay)
    return get_overlay(role, "kubernetes", "V1Pod")


def test_what_is_kept_adds_up() -> None:
    assert kept({"a": [1]}, {"a": [2]}) == {"a": [1, 2]}
    assert kept({"a": [1]}, {PUT("a"): [2]}) == {PUT("a"): [2]}
    assert kept({PUT("a"): [2]}, {"a": [3]}) == {"a": [3]}
    one, two = (
        {"spec": {PODS: [{"name": "m", "tty": True}]}},
        {"spec": {PODS: [{"name": "m", "stdin": True}]}},
    )
    both = kept(one, two)
    assert both == {"spec": {PODS: [{"name": "m", "tty": True}, {"name": "m", "stdin": True}]}}
    request = {"spec": {"containers": [{"name": "m", "image": "i"}]}}
    apply_overlay(request, both)
    assert request == {"spec": {"containers": [{"name": "m", "image": "i", "tty": True, "stdin": True}]}}


def test_overlays_by_kind() -> None:
    app = AppDef("a", [], metadata={"s": {"JobSpec": {"x": 1}, "JobConfig": {"y": 2}}})
    assert get_overlay(app, "s", "JobConfig") == {"y": 2}
    assert get_overlay(app, "s", "V1Pod") == {}
    app.metadata["s"] = {"spec": {"x": 1}, "apiVersion": "v1"}  # as before there were kinds
    assert get_overlay(app, "s", "V1Pod") == app.metadata["s"]
    assert get_overlay(app, "s", "V1Pod", flat_fallback=False) == {}
    app.metadata["s"] = "left over"
    set_overlay(app, "s", "V1Pod", {"x": 1})
    assert app.metadata["s"] == {"V1Pod": {"x": 1}}
