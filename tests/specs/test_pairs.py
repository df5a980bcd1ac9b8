from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.errors import OptionParseError
from shunter.specs.conversion import parse_dict, parse_pairs, split_items, unquote


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", {}),
        ("  ", {}),
        ("a=1", {"a": "1"}),
        ("a=1,b=2", {"a": "1", "b": "2"}),
        ("a=1;b=2", {"a": "1", "b": "2"}),
        ("FOO=a,b,BAR=c", {"FOO": "a,b", "BAR": "c"}),
        ("FOO=a;b;BAR=c;d", {"FOO": "a;b", "BAR": "c;d"}),
        ("a=", {"a": ""}),
        ("a=,b=2", {"a": "", "b": "2"}),
        (" a = 1 , b = 2 ", {"a": "1", "b": "2"}),
        ("a='x=y,z',b=2", {"a": "'x=y,z'", "b": "2"}),
        ("a=\"x;y\",b='c'", {"a": '"x;y"', "b": "'c'"}),
        ('a=["x,y", "z=1"],b=2', {"a": '["x,y", "z=1"]', "b": "2"}),
        ('a={"k": [1, {"l": 2}]},b=2', {"a": '{"k": [1, {"l": 2}]}', "b": "2"}),
        ("a=don't,b=can't", {"a": "don't", "b": "can't"}),
        ("a=1=2", {"a": "1=2"}),
        ("a==,b=", {"a": "=", "b": ""}),
        ("URL=http://h/?x=1&y=2,b=c=d", {"URL": "http://h/?x=1&y=2", "b": "c=d"}),
        ("loss=loss = ([0-9]{1,3}),b=2", {"loss": "loss = ([0-9]{1,3})", "b": "2"}),
        ("a=s3://b/p?x:y", {"a": "s3://b/p?x:y"}),
        (r'a={"b":"x\"y,c=1"},d=2', {"a": r'{"b":"x\"y,c=1"}', "d": "2"}),
        (r'a=["x\\"],d=2', {"a": r'["x\\"]', "d": "2"}),
        (r"a='x\',d=2", {"a": r"'x\'", "d": "2"}),
        ("a=loss=(.*);,b=2", {"a": "loss=(.*);", "b": "2"}),
        ("a=x; y z=1,b=2", {"a": "x; y z=1", "b": "2"}),
        ("a=x; y=1", {"a": "x", "y": "1"}),
        ("a=[0-9,.]+,b=2", {"a": "[0-9,.]+", "b": "2"}),
    ],
)
def test_pairs(text: str, pairs: dict[str, str]) -> None:
    assert parse_pairs(text) == pairs


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a", "holds no '='"),
        ("a,b", "holds no '='"),
        ("=1", "character 1: no key before '='"),
        ("a=1,=2", "no key before '='"),
        ("a=1,a=2", "'a' is given twice"),
        ("a='x", "character 3: the quote is never closed"),
        ("a,b=1", "no key before '='"),
    ],
)
def test_what_does_not_parse(text: str, problem: str) -> None:
    with pytest.raises(OptionParseError) as caught:
        parse_pairs(text)
    assert problem in caught.value.message
    assert repr(text) in caught.value.message
    assert "Example" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []),
        (",;,", []),
        ("a", ["a"]),
        ("a,b;c", ["a", "b", "c"]),
        (" a , b ", ["a", "b"]),
        ("a,,b", ["a", "b"]),
        ("'a,b',c", ["a,b", "c"]),
        ("don't,do", ["don't", "do"]),
        ("a=1,b", ["a=1", "b"]),
    ],
)
def test_items(text: str, items: list[str]) -> None:
    assert split_items(text) == items


keys = st.from_regex(r"[a-z_][a-z0-9_.-]{0,8}", fullmatch=True)
plain = st.text(st.characters(blacklist_characters="=,;'\"[]{}", blacklist_categories=("C", "Z")))


@pytest.mark.slow
@given(st.dictionaries(keys, st.lists(plain.filter(bool), max_size=3)), st.sampled_from(",;"))
def test_pairs_of_lists_come_back(values: dict[str, list[str]], delimiter: str) -> None:
    text = delimiter.join(f"{key}={delimiter.join(items)}" for key, items in values.items())
    assert {key: split_items(value) for key, value in parse_pairs(text).items()} == values


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.dictionaries(keys, st.lists(json_values, max_size=3) | st.dictionaries(st.text(), json_values)))
def test_values_as_json_come_back(values: dict[str, Any]) -> None:
    text = ",".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    assert {key: json.loads(value) for key, value in parse_pairs(text).items()} == values


@given(st.text("ab=,;'\"[]{}\\ "))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for parse in (parse_pairs, split_items):
        try:
            parse(text)  # type: ignore[operator]
        except OptionParseError as error:
            assert error.message  # noqa: PT017 - it need not be raised


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("a=1,b=2", {"a": "1", "b": "2"}),
        ("'a=1,b=2'", {"a": "1", "b": "2"}),
        ("'a=1','b=2'", {"a": "1", "b": "2"}),
        ('"a=x, y";"b=2"', {"a": "x, y", "b": "2"}),
        ("loss=loss=([0-9.]+)", {"loss": "loss=([0-9.]+)"}),
        ("a=b==,c=d=e", {"a": "b==", "c": "d=e"}),
        ("a='b=c,d=e'", {"a": "b=c,d=e"}),
    ],
)
def test_pairs_of_a_dict_may_be_quoted_and_hold_equals_signs(text: str, pairs: dict[str, str]) -> None:
    assert parse_dict(text) == pairs


@pytest.mark.parametrize("text", ["'a=1','a=2'", "'a'", "a", "'a=1"])
def test_dicts_that_do_not_parse(text: str) -> None:
    with pytest.raises(OptionParseError):
        parse_dict(text)


@given(st.dictionaries(keys, st.text(st.characters(blacklist_characters="'", blacklist_categories=("C",)))))
def test_quoted_values_come_back(values: dict[str, str]) -> None:
    text = ",".join(f"{key}='{value}'" for key, value in values.items())
    assert {key: unquote(value) for key, value in parse_pairs(text).items()} == values
