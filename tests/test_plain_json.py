"""JSON by the C functions alone reads and writes what the standard library's module does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter import plain_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters())
KEYS = st.text() | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)
WRONG = ["", " ", "{", "[1] 2", "nan", "{'a': 1}", '"\n"', "[1,]", "{1: 2}", "01", "tru"]


@given(VALUES)
def test_texts_are_those_of_the_module(value):
    assert plain_json.dumps(value) == json.dumps(value)
    assert plain_json.pretty(value) == json.dumps(value, indent=2)


@given(VALUES, st.sampled_from(["", " ", "\n\t\r "]))
def test_values_are_those_of_the_module(value, around):
    text = around + json.dumps(value) + around
    assert plain_json.loads(text) == json.loads(text)


def test_what_is_not_json_is_refused():
    program = """
import sys
from shunter import plain_json
for text in sys.argv[1:]:
    sys.modules.pop("json", None)
    sys.modules.pop("json.decoder", None)  # the C functions look for it there
    try:
        plain_json.loads(text)
    except ValueError:
        print("refused")
"""
    command = [sys.executable, "-c", program, *WRONG]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["refused"] * len(WRONG)


def test_numbers_that_json_lacks():
    assert plain_json.loads("[-Infinity, 1e3]") == [float("-inf"), 1000.0]
    assert plain_json.dumps(float("inf")) == json.dumps(float("inf"))


def test_what_json_lacks_is_replaced_or_refused():
    value = {"path": [PurePosixPath("/a")]}
    assert plain_json.dumps(value, str) == json.dumps(value, default=str)
    assert plain_json.pretty(value, str) == json.dumps(value, default=str, indent=2)
    for write in (plain_json.dumps, plain_json.pretty):
        with pytest.raises(TypeError):
            write(value)


def test_without_the_functions_the_module_is_used():
    program = """
import sys
sys.modules["_json"] = None
from shunter import plain_json
assert plain_json.loads(plain_json.dumps({"a": [1]})) == {"a": [1]}
assert "json" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
