from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.errors import InvalidRunConfigException, OptionParseError
from shunter.specs import option, runopt, runopts
from shunter.specs.conversion import ConversionError, from_text


class Colour(Enum):
    RED = "r"
    BLUE = "b"


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Opts:
    queue: str = option("the queue")
    priority: int = option("how urgent", default=5)
    share: float | None = option("its share", default=None)
    fast: bool = option("hurry", default=False)
    tags: list[str] = option("tags", factory=list)  # noqa: RUF009 - a field
    labels: dict[str, str] = option("labels", factory=dict)  # noqa: RUF009 - a field
    token: Optional[str] = option("key to the door", default=None, secret=True)  # noqa: UP045 - taken too


OPTS = runopts.from_dataclass(Opts)


def test_options_come_from_the_dataclass() -> None:
    assert [name for name, _ in OPTS] == ["queue", "priority", "share", "fast", "tags", "labels", "token"]
    assert OPTS.get("queue") == runopt(None, str, True, "the queue")
    assert OPTS.get("share") == runopt(None, float, False, "its share")
    token = OPTS.get("token")
    assert token is not None
    assert (token.secret, token.opt_type_name) == (True, "str")
    assert "priority" in OPTS
    assert OPTS.get("nope") is None
    assert len(OPTS) == 7


def test_resolve_fills_in_defaults_and_converts() -> None:
    cfg = {"queue": "q", "priority": "7", "share": 1, "fast": "yes", "tags": "a,b", "labels": "k:v;l:w"}
    assert OPTS.resolve(cfg) == {
        "queue": "q",
        "priority": 7,
        "share": 1.0,
        "fast": True,
        "tags": ["a", "b"],
        "labels": {"k": "v", "l": "w"},
        "token": None,
    }
    assert OPTS.resolve(Opts("q", 7))["priority"] == 7
    assert OPTS.resolve({"queue": "q", "priority": None})["priority"] == 5


def test_defaults_are_not_shared_between_resolutions() -> None:
    OPTS.resolve({"queue": "q"})["tags"].append("x")
    assert OPTS.resolve({"queue": "q"})["tags"] == []


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(InvalidRunConfigException) as caught:
        OPTS.resolve({"prioritty": 3, "priority": "high", "fast": "maybe", "tags": [1]})
    message = caught.value.message
    for text in (
        "there is no option 'prioritty'. Did you mean priority?",
        "option 'priority' (int): 'high' is not an integer",
        "option 'fast' (bool): 'maybe' must be true or false",
        "option 'tags' (list[str]): [0]: 1 is not of type str",
        "option 'queue' (str) is required: the queue (-cfg queue=...)",
    ):
        assert text in message
    assert caught.value.cfg_key == "prioritty"
    assert caught.value.exit_code == 3


def test_cfg_from_str() -> None:
    assert OPTS.cfg_from_str("") == {}
    assert OPTS.cfg_from_str("queue=a,b,priority=0x10,tags=x;y,labels=k:v") == {
        "queue": "a,b",
        "priority": 16,
        "tags": ["x", "y"],
        "labels": {"k": "v"},
    }
    assert OPTS.cfg_from_str("unknown=1") == {"unknown": "1"}
    with pytest.raises(InvalidRunConfigException, match=r"option 'priority' \(int\): 'high'"):
        OPTS.cfg_from_str("priority=high")
    with pytest.raises(OptionParseError, match="holds no '='"):
        OPTS.cfg_from_str("priority")
    with pytest.raises(InvalidRunConfigException, match="is not of the form key:value"):
        OPTS.cfg_from_str("labels=k:v;l")


def test_quotes_protect_a_value() -> None:
    assert OPTS.cfg_from_str("queue='a=b,c',priority='1'") == {"queue": "a=b,c", "priority": 1}
    assert OPTS.cfg_from_str("tags='a,b',\"c\"") == {"tags": ["a,b", "c"]}
    assert OPTS.cfg_from_str("unknown='a=b'") == {"unknown": "a=b"}
    assert OPTS.cfg_from_str("queue=don't") == {"queue": "don't"}


def test_cfg_from_json() -> None:
    assert OPTS.cfg_from_json_repr('{"queue": "q", "tags": ["a,b"], "share": 2}') == {
        "queue": "q",
        "tags": ["a,b"],
        "share": 2.0,
    }
    for text, problem in (
        ("[1]", "must be a JSON object"),
        ("{", "not JSON"),
        ('{"fast": 3}', "option 'fast'"),
    ):
        with pytest.raises(InvalidRunConfigException, match=problem):
            OPTS.cfg_from_json_repr(text)


def test_add_checks_the_default() -> None:
    opts = runopts()
    opts.add("a", str, "help", default="x")
    opts.add("b", list[str], "help", default=["x"])
    opts.add("c", int, "help", required=True)
    with pytest.raises(ValueError, match="is required, so it cannot have the default"):
        opts.add("d", int, "help", default=1, required=True)
    for type_, default in ((int, "x"), (bool, 1), (list[str], [1]), (dict[str, str], ["a"])):
        with pytest.raises(TypeError, match="option 'd'"):
            opts.add("d", type_, "help", default=default)  # type: ignore[arg-type]
    assert [name for name, _ in opts] == ["a", "b", "c"]


def test_sets_of_options_are_joined() -> None:
    one, two = runopts(), runopts()
    one.add("a", str, "first")
    one.add("b", str, "first")
    two.add("b", int, "second")
    joined = one | two
    assert [(name, opt.help) for name, opt in joined] == [("a", "first"), ("b", "second")]
    assert [opt.help for _, opt in one] == ["first", "first"]
    one.update(two)
    assert [opt.help for _, opt in one] == ["first", "second"]


def test_repr_lists_required_and_optional() -> None:
    text = repr(OPTS)
    assert text.startswith("usage:\n    queue=QUEUE,[priority=PRIORITY],")
    assert "required arguments:\n    queue=QUEUE (str)\n        the queue" in text
    assert "optional arguments:\n    priority=PRIORITY (int, 5)\n        how urgent" in text
    assert "tags=TAGS (list[str], [])" in text


# ---- values of any type


@dataclass
class Pairs:
    env: dict[str, str] | None = option("variables", default=None)  # noqa: RUF009 - a field
    marks: list[dict[str, str]] | None = option("marks", default=None)  # noqa: RUF009 - a field
    queue: str | None = option("the queue", default=None)


@pytest.mark.parametrize(
    ("text", "cfg"),
    [
        ("env=A=1", {"env": {"A": "1"}}),
        ("env=A=1,queue=q", {"env": {"A": "1"}, "queue": "q"}),
        ("queue=q,env=A=x=y", {"env": {"A": "x=y"}, "queue": "q"}),
        ("env='A=1,B=2',queue=q", {"env": {"A": "1", "B": "2"}, "queue": "q"}),
        ("env='A=1','B=2'", {"env": {"A": "1", "B": "2"}}),
        ("marks=a=b", {"marks": [{"a": "b"}]}),
        ("marks=loss=l=([0-9.]+)", {"marks": [{"loss": "l=([0-9.]+)"}]}),
        (
            'marks=[{"Key": "a", "Value": "b=c,d"}],queue=q',
            {"marks": [{"Key": "a", "Value": "b=c,d"}], "queue": "q"},
        ),
    ],
)
def test_options_of_pairs_take_pairs(text: str, cfg: dict[str, Any]) -> None:
    assert runopts.from_dataclass(Pairs).cfg_from_str(text) == cfg


def test_a_second_pair_is_not_taken_for_an_option() -> None:
    with pytest.raises(OptionParseError, match="no option 'B'") as caught:
        runopts.from_dataclass(Pairs).cfg_from_str("env=A=1,B=2")
    assert "env='A=1,B=2'" in caught.value.hint
    assert runopts.from_dataclass(Pairs).cfg_from_str("queue=a=b,B=2") == {"queue": "a=b", "B": "2"}


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (int, True),
        (int, 1.5),
        (bool, 1),
        (str, 5),
        (list[str], {"a": "b"}),
        (dict[str, str], ["a"]),
        (dict[str, str], {"a": 1}),
        (list[int], ["1"]),
        (float, True),
    ],
)
def test_wrong_types_are_refused(type_: Any, value: object) -> None:
    opts = runopts()
    opts.add("o", type_, "an option")
    with pytest.raises(InvalidRunConfigException, match="option 'o'"):
        opts.resolve({"o": value})


@pytest.mark.parametrize(
    ("tp", "text", "value"),
    [
        (str, "", ""),
        (str, "None", "None"),
        (int, "-3", -3),
        (int, "1_000", 1000),
        (float, "1e-3", 0.001),
        (Path, "~/x", None),
        (Colour, "RED", Colour.RED),
        (Colour, "red", Colour.RED),
        (Colour, "b", Colour.BLUE),
        (Literal["a", 2], "2", 2),
        (int | None, "None", None),
        (list[int] | None, "", None),
        (list[int], "", []),
        (list[int], "1,2;3", [1, 2, 3]),
        (list[int], "[1, 2]", [1, 2]),
        (tuple[int, str], "1,x", (1, "x")),
        (tuple[int, ...], "1,2,3", (1, 2, 3)),
        (dict[str, int], "a=1,b=2", {"a": 1, "b": 2}),
        (dict[str, int], "a:1;b:2", {"a": 1, "b": 2}),
        (dict[str, str], "a:b=c", {"a": "b=c"}),
        (dict[str, list[int]], "a=1,2,b=3", {"a": [1, 2], "b": [3]}),
        (list[dict[str, str]], '[{"Key": "a", "Value": "b"}]', [{"Key": "a", "Value": "b"}]),
        (list[dict[str, str]], "loss=(.*);,acc=(.*)", [{"loss": "(.*);"}, {"acc": "(.*)"}]),
        (dict[str, str], r'{"a": "x\"y;z"}', {"a": 'x"y;z'}),
        (Point, "x=1,y=2", Point(1, 2)),
        (Point, '{"x": 1}', Point(1, 0)),
        (int | str, "5", 5),
        (int | str, "x", "x"),
        (bool | int, "7", 7),
    ],
)
def test_from_text(tp: Any, text: str, value: object, tmp_path: Path) -> None:
    expected = tmp_path / "user" / "x" if tp is Path else value
    found = from_text(tp, text)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("tp", "text", "problem"),
    [
        (int, "x", "'x' is not an integer"),
        (int, "1.5", "'1.5' is not an integer"),
        (float, "x", "'x' is not a number"),
        (bool, "", "'' must be true or false"),
        (Colour, "gren", "'gren' is not a valid value"),
        (Literal["a", "b"], "c", "Known: a, b"),
        (list[int], "1,x", "item 2: 'x' is not an integer"),
        (tuple[int, int], "1", "1 values where tuple[int, int] takes 2"),
        (dict[str, int], "a=x", "[a]: 'x' is not an integer"),
        (dict[str, int], "a", "'a'"),
        (Point, "z=1", "Point has no field 'z'"),
        (Point, "y=1", "Point needs x"),
        (list[int], "[1,", "is not JSON"),
        (list[int], "'1", "the quote is never closed"),
        (int | bool, "x", "'x' must be one of int | bool"),
    ],
)
def test_from_text_refuses(tp: Any, text: str, problem: str) -> None:
    with pytest.raises(ConversionError) as caught:
        from_text(tp, text)
    assert problem in str(caught.value)


@given(
    st.text(), st.sampled_from([int, float, bool, list[int], dict[str, int], tuple[int, ...], Point, Colour])
)
def test_any_text_is_decoded_or_refused(text: str, tp: Any) -> None:
    try:
        from_text(tp, text)
    except ConversionError as error:
        assert str(error)  # noqa: PT017 - it need not be raised
