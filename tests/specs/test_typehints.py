"""Annotations read at run time."""

from __future__ import annotations

import typing

import pytest

from shunter.specs import typehints


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
