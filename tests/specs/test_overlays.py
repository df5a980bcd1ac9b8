"""Overlays: what is laid over a scheduler's request."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.errors import ConfigError
from shunter.specs.overlays import DEL, JOIN, PUT, apply_overlay, operators_in, plain_keys

scalars = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from("ab")
keys = st.sampled_from(["x", "y", "z"])
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=3)
)
requests = st.dictionaries(keys, plain, max_size=3)


def test_without_operators() -> None:
    base = {"a": {"b": 1, "c": [1]}, "d": [1], "e": [1], "f": 1}
    before = copy.deepcopy(base)
    overlay = {"a": {"b": 2, "c": [2]}, "d": (2,), "e": [2], "f": None, "g": {"h": (1,), "i": None}}
    merged = {"a": {"b": 2, "c": [1, 2]}, "d": [2], "e": [1, 2], "g": {"h": [1]}}
    assert apply_overlay(base, overlay) == merged
    assert base == before


@pytest.mark.parametrize(
    ("base", "overlay", "merged"),
    [
        ({"a": [1]}, {PUT("a"): [2]}, {"a": [2]}),
        ({"a": {"b": 1}}, {PUT("a"): {"c": 2, "d": None}}, {"a": {"c": 2}}),
        ({}, {PUT("a"): 1}, {"a": 1}),
        ({"a": 1, "b": 2}, {DEL("a"): None}, {"b": 2}),
        ({"b": 2}, {DEL("a"): "whatever"}, {"b": 2}),
        (
            {"c": [{"n": "m", "image": "v1", "env": [1]}]},
            {JOIN("c", on="n"): [{"n": "m", "env": [2], PUT("args"): [3]}, {"n": "s"}]},
            {"c": [{"n": "m", "image": "v1", "env": [1, 2], "args": [3]}, {"n": "s"}]},
        ),
        ({}, {JOIN("c", on="n"): [{"n": "m"}]}, {"c": [{"n": "m"}]}),
        ({"a": {"b": [1]}}, {"a": {PUT("b"): [2], DEL("c"): None}}, {"a": {"b": [2]}}),
        ({}, {"a": {"b": {PUT("c"): [1]}}}, {"a": {"b": {"c": [1]}}}),
    ],
)
def test_operators(base: dict[str, Any], overlay: dict[str, Any], merged: dict[str, Any]) -> None:
    assert apply_overlay(base, overlay) == merged


def test_their_texts_are_those_of_torchx() -> None:
    assert (PUT("x"), JOIN("x", on="y"), DEL("x")) == ("__put__:x", "__join__:x:y", "__del__:x")
    assert plain_keys({PUT("x"): 1, JOIN("a:b", on="y"): [], "z": 1}) == ["x", "a:b", "z"]


@pytest.mark.parametrize(
    ("base", "overlay"),
    [
        ({"a": 1}, {JOIN("a", on="n"): []}),
        ({"a": [1]}, {JOIN("a", on="n"): []}),
        ({}, {JOIN("a", on="n"): [1]}),
        ({}, {JOIN("a", on="n"): [{"m": 1}]}),
    ],
)
def test_what_cannot_be_joined(base: dict[str, Any], overlay: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="JOIN"):
        apply_overlay(base, overlay)


@given(requests, requests)
def test_plain_overlays_have_no_operators(base: dict[str, Any], overlay: dict[str, Any]) -> None:
    before = copy.deepcopy((base, overlay))
    merged = apply_overlay(base, overlay)
    assert list(operators_in(overlay)) == []
    assert set(merged) == {*base, *overlay} - {key for key, value in overlay.items() if value is None}
    assert (base, overlay) == before
