"""Hypothesis strategies for every noun of a job."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from shunter.specs import AppDef, BindMount, DeviceMount, Resource, RetryPolicy, Role, VolumeMount

text = st.text(max_size=8)
names = st.text(min_size=1, max_size=8)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
resources = st.builds(
    Resource,
    st.integers(-1),
    st.integers(-1),
    st.integers(-1),
    st.dictionaries(text, json_values, max_size=2),
    st.dictionaries(text, st.integers(), max_size=2),
    st.dictionaries(text, json_values, max_size=2),
)
mounts = (
    st.builds(BindMount, text, text, st.booleans())
    | st.builds(VolumeMount, text, text, st.booleans())
    | st.builds(DeviceMount, text, text, st.text("rwm", max_size=3))
)
roles = st.builds(
    Role,
    name=names,
    image=text,
    min_replicas=st.none() | st.integers(),
    base_image=st.none() | text,
    entrypoint=text,
    args=st.lists(text, max_size=3),
    env=st.dictionaries(text, text, max_size=3),
    num_replicas=st.integers(),
    max_retries=st.integers(),
    retry_policy=st.sampled_from(RetryPolicy),
    resource=resources,
    port_map=st.dictionaries(text, st.integers(), max_size=2),
    metadata=st.dictionaries(text, json_values, max_size=2),
    mounts=st.lists(mounts, max_size=2),
)
apps = st.builds(AppDef, names, st.lists(roles, max_size=2), st.dictionaries(text, text, max_size=2))
