"""Annotations read with and without `typing`."""

from __future__ import annotations

import subprocess
import sys
import typing

import pytest

from shunter.specs import typehints

_ALONE = """
import sys, types
from shunter.specs.typehints import *
from shunter.specs import typehints as t

class Options:
    a: int | None
    b: list[str]
    c: None

hints = t.class_hints(Options)
assert hints["a"] == int | None and t.is_union(hints["a"]) and t.get_args(hints["a"]) == (int, type(None))
assert "typing" not in sys.modules, "before"
assert t.evaluate("dict[str, int]", {}) == dict[str, int]
assert t.get_origin(dict[str, int]) is dict
assert not t.is_any(int) and not t.is_literal(int) and not t.is_annotated(int)
assert "typing" not in sys.modules, "after"
known = t.evaluate("Annotated[str, '-n']", {})
assert t.is_annotated(known) and "typing" in sys.modules
print("good")
"""


def test_plain_annotations_do_without_typing():
    code = f"import sys; sys.path[:0] = {sys.path!r}\n{_ALONE}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == "good\n", done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "int",
        "int | None",
        "list[str]",
        "Optional[int]",
        "Union[int, str]",
        "Literal['a']",
        "Annotated[int, 'x']",
        "None",
    ],
)
def test_types_are_what_typing_says(text):
    names = vars(typing)
    tp = typehints.evaluate(text, {})
    assert tp == eval(text, dict(names)) or (text == "None" and tp is type(None))
    expected = typing.get_origin(tp)
    assert typehints.get_args(tp) == typing.get_args(tp)
    assert typehints.is_union(tp) == (text.startswith(("Optional", "Union")) or "|" in text)
    assert typehints.is_literal(tp) == (expected is typing.Literal)
    assert typehints.is_annotated(tp) == text.startswith("Annotated")


def test_a_name_of_the_module_wins_over_one_of_typing():
    class Text:
        pass

    assert typehints.evaluate("Text", {"Text": Text}) is Text
