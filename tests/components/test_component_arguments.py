"""Signature to command line: every type, every spelling, every mistake."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Dict, List, Literal, NewType, Optional, Tuple, Union  # noqa: UP035

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.components.component import Component, HelpRequested
from shunter.errors import ComponentArgumentError, ComponentValidationException, ConfigError
from shunter.specs import AppDef


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclasses.dataclass
class Adam:
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    nested: Optional[Dict[str, int]] = None  # noqa: UP006, UP045


Steps = NewType("Steps", int)


def bind(fn: Any, *args: str, defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return Component("c", fn).bind(args, defaults)


def one(tp: Any, *args: str) -> Any:
    """Parse arguments of a component whose one parameter ``x`` has this type."""

    def fn(x) -> AppDef: ...  # type: ignore[no-untyped-def]

    fn.__annotations__["x"] = tp
    return bind(fn, *args)["x"]


@pytest.mark.parametrize(
    ("tp", "text", "value"),
    [
        (str, "a b", "a b"),
        (str, "", ""),
        (int, "-5", -5),
        (int, "0x1f", 31),
        (float, "-1e-3", -0.001),
        (float, "3", 3.0),
        (bool, "yes", True),
        (bool, "on", True),
        (bool, "1", True),
        (bool, "True", True),
        (bool, "no", False),
        (bool, "OFF", False),
        (Path, "a/b", Path("a/b")),
        (Literal["sgd", "adam"], "adam", "adam"),
        (Literal[1, 2], "2", 2),
        (Color, "RED", Color.RED),
        (Color, "b", Color.BLUE),
        (Optional[int], "7", 7),  # noqa: UP045
        (int | None, "None", None),
        (Union[int, str], "7", 7),  # noqa: UP007
        (Union[int, str], "seven", "seven"),  # noqa: UP007
        (list[int], "1,2", [1, 2]),
        (List[str], "a,'b,c'", ["a", "b,c"]),  # noqa: UP006
        (list[int], "[1, 2]", [1, 2]),
        (list, "a,b", ["a", "b"]),
        (Sequence[int], "1", [1]),
        (list[str], "", []),
        (Optional[list[str]], "", None),  # noqa: UP045
        (tuple[int, str], "1,a", (1, "a")),
        (Tuple[int, ...], "1,2,3", (1, 2, 3)),  # noqa: UP006
        (dict[str, int], "a=1,b=2", {"a": 1, "b": 2}),
        (dict[str, str], "FOO=a,b,BAR=c", {"FOO": "a,b", "BAR": "c"}),
        (dict[str, str], "XLA_FLAGS=--xla_a=true", {"XLA_FLAGS": "--xla_a=true"}),
        (dict[str, str], "U='a=b,c',V=d", {"U": "a=b,c", "V": "d"}),
        (Mapping[str, float], '{"a": 1}', {"a": 1.0}),
        (list[dict[str, str]], '[{"Key": "a"}]', [{"Key": "a"}]),
        (dict[str, Any], '{"a": [1, null]}', {"a": [1, None]}),
        (Adam, "lr=0.1", Adam(0.1)),
        (Adam, '{"lr": 0.1, "betas": [0, 1], "nested": {"a": 1}}', Adam(0.1, (0.0, 1.0), {"a": 1})),
        (Annotated[int, "how many"], "3", 3),
        (Steps, "3", 3),
        (list[Annotated[Steps, "each"]], "3,4", [3, 4]),
        (dict[str, Steps | None], "a=3", {"a": 3}),
        ("int", "3", 3),
        ("Optional[List[int]]", "3", [3]),
        ("list['Color']", "RED,BLUE", [Color.RED, Color.BLUE]),
    ],
)
def test_a_value_of_every_type(tp: Any, text: str, value: Any) -> None:
    got = one(tp, "-x", text)
    assert got == value
    assert type(got) is type(value)
    assert one(tp, f"-x={text}") == one(tp, f"--x={text}") == one(tp, "--x", text) == value


@pytest.mark.parametrize(
    ("tp", "text"),
    [
        (int, "1.5"),
        (int, ""),
        (float, "x"),
        (bool, "maybe"),
        (Literal["sgd", "adam"], "adm"),
        (Color, "GREEN"),
        (tuple[int, int], "1"),
        (list[int], "1,x"),
        (list[int], "[1"),
        (dict[str, int], "a"),
        (dict[str, int], "a=x"),
        (Adam, "betas=1"),
        (Adam, "lr=1,momentum=2"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_option_and_type(tp: Any, text: str) -> None:
    with pytest.raises(ComponentArgumentError, match="-x: ") as caught:
        one(tp, "-x", text)
    assert caught.value.exit_code == 2
    assert "expected" in caught.value.message


@pytest.mark.parametrize("option", ["--memMB", "--mem-mb", "--mem_mb", "--mem-MB"])
def test_spellings(option: str) -> None:
    def fn(memMB: int) -> AppDef: ...

    assert bind(fn, option, "5") == bind(fn, f"{option}=5") == {"memMB": 5}


def test_an_exact_name_wins_over_another_spelling() -> None:
    def fn(memMB: int = 0, mem_mb: int = 0) -> AppDef: ...

    assert bind(fn, "--mem-mb", "5") == {"memMB": 0, "mem_mb": 5}
    assert bind(fn, "--memMB", "5") == {"memMB": 5, "mem_mb": 0}


def test_one_letter_options() -> None:
    def fn(j: str = "", h: str | None = None) -> AppDef: ...

    assert bind(fn, "-j2x4", "-h", "gpu.small") == {"j": "2x4", "h": "gpu.small"}
    assert bind(fn, "--j", "2x4") == {"j": "2x4", "h": None}
    with pytest.raises(ComponentArgumentError, match="unknown option -help") as caught:
        bind(fn, "-help")
    assert "--help" in caught.value.hint


@pytest.mark.parametrize(
    ("args", "debug"),
    [
        (["--debug"], True),
        (["--no-debug"], False),
        (["--no_debug"], False),
        (["--debug", "true"], True),
        (["--debug", "FALSE"], False),
        (["--debug", "no"], False),
        (["--debug=0"], False),
        ([], None),
    ],
)
def test_flags(args: list[str], debug: bool | None) -> None:
    def fn(*rest: str, debug: bool | None = None) -> AppDef: ...

    assert bind(fn, *args, "run") == {"rest": ("run",), "debug": debug}


def test_flags_leave_the_first_word_of_the_program_alone() -> None:
    def fn(*rest: str, debug: bool = False) -> AppDef: ...

    assert bind(fn, "--debug", "train.py", "true") == {"rest": ("train.py", "true"), "debug": True}
    assert bind(fn, "--debug", "--", "true") == {"rest": ("true",), "debug": True}


def test_a_flag_takes_any_word_when_nothing_else_could() -> None:
    def fn(debug: bool = False) -> AppDef: ...

    with pytest.raises(ComponentArgumentError, match="'maybe' must be true or false"):
        bind(fn, "--debug", "maybe")
    with pytest.raises(ComponentArgumentError, match="--no-debug takes no value"):
        bind(fn, "--no-debug=1")


def test_lists_and_dicts_are_repeatable_and_nothing_else_is() -> None:
    def fn(tags: list[str] | None = None, env: dict[str, str] | None = None, n: int = 1) -> AppDef: ...

    values = bind(fn, "--tags", "a,b", "--tags=c", "--env", "A=1", "--env", "B=x=y", "--env", "A=2")
    assert values == {"tags": ["a", "b", "c"], "env": {"A": "2", "B": "x=y"}, "n": 1}
    with pytest.raises(ComponentArgumentError, match=r"-n is given twice \('1' and '2'\)"):
        bind(fn, "-n", "1", "-n", "2")


def sh(*args: str, n: int = 1, lr: float = 0.0) -> AppDef: ...


@pytest.mark.parametrize(
    "words",
    [
        ["echo", "-e", "a", "-e", "b"],
        ["echo", "-n", "1", "-n", "2", "--n", "3"],
        ["echo", "-5", "--", "--help", "-1e-3"],
        ["-5", "a"],
        ["-.5"],
        ["-"],
        ["echo", "${app_id}", "", "a b", "--unknown=x"],
    ],
)
def test_the_program_gets_its_words_untouched(words: list[str]) -> None:
    expected = {"args": tuple(words), "n": 2, "lr": -1.5}
    assert bind(sh, "-n", "2", "--lr", "-1.5", *words) == expected
    assert bind(sh, "-n", "2", "--lr", "-1.5", "--", *words) == expected


def test_varargs_have_types_and_positional_parameters_may_stand_before_them() -> None:
    def fn(a: int, /, b: str = "b", *rest: int, c: int) -> AppDef:
        return AppDef(repr((a, b, rest, c)))

    component = Component("c", fn)
    assert component.parse(["-a", "1", "-c", "2", "3", "-4"]).name == "(1, 'b', (3, -4), 2)"
    with pytest.raises(ComponentArgumentError, match="argument 2 of rest: 'x' is not an integer"):
        component.parse(["-a", "1", "-c", "2", "3", "x"])


def test_all_problems_are_reported_at_once() -> None:
    def fn(alpha: int, beta: str, gamma: str, num_replicas: int = 1) -> AppDef: ...

    with pytest.raises(ComponentArgumentError) as caught:
        bind(fn, "--alpha", "x", "--num_replica", "2", "stray")
    text = caught.value.message
    assert "4 problems" in text
    assert "--alpha: 'x' is not an integer" in text
    assert "unknown option --num_replica" in text
    assert "unexpected argument 'stray'" in text
    assert "missing: --beta, --gamma" in text
    assert "Did you mean --num-replicas" in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "args", [["--msg"], ["--msg", "--"], ["--msg", "--image", "x"], ["--msg", "-n", "1"]]
)
def test_a_value_that_is_missing(args: list[str]) -> None:
    def fn(msg: str, image: str = "", n: int = 1) -> AppDef: ...

    with pytest.raises(ComponentArgumentError, match="--msg needs a value"):
        bind(fn, *args)


def test_a_value_may_begin_with_a_hyphen() -> None:
    def fn(msg: str) -> AppDef: ...

    assert bind(fn, "--msg", "-v")["msg"] == "-v"
    assert bind(fn, "--msg=--verbose")["msg"] == "--verbose"


def test_unknown_options_of_a_component_with_varargs_point_to_the_hyphens() -> None:
    with pytest.raises(ComponentArgumentError, match="unknown option --lrr") as caught:
        bind(sh, "--lrr", "1", "echo")
    assert "Did you mean --lr?" in caught.value.hint
    assert "after '--'" in caught.value.hint


def test_help_is_asked_for_only_before_the_program() -> None:
    with pytest.raises(HelpRequested) as caught:
        bind(sh, "-n", "1", "--help", "echo")
    assert caught.value.exit_code == 0
    assert caught.value.message.startswith("usage: shunter run c ")
    assert bind(sh, "echo", "--help")["args"] == ("echo", "--help")


def test_aliases() -> None:
    def fn(config_name: Annotated[str, "-cn", "the configuration"]) -> AppDef: ...

    assert bind(fn, "-cn", "a") == bind(fn, "-cn=a") == bind(fn, "--config-name", "a")
    text = Component("c", fn).help_text()
    assert "-cn" in text
    assert "the configuration" in text


# ---- layers


def layered(
    *rest: str, a: int = 1, b: int = 1, c: str | None = "c", env: dict[str, str] | None = None
) -> AppDef: ...


def test_defaults_stand_between_the_signature_and_the_command_line() -> None:
    values = bind(
        layered, "-b", "3", defaults={"a": "2", "b": "2", "c": "None", "env": "A=1", "rest": "x 'y z'"}
    )
    assert values == {"rest": ("x", "y z"), "a": 2, "b": 3, "c": None, "env": {"A": "1"}}
    assert bind(layered, "q", defaults={"rest": ["x"], "env": {"B": "2"}})["rest"] == ("q",)


def test_unknown_and_wrong_defaults_are_errors() -> None:
    with pytest.raises(ComponentArgumentError) as caught:
        bind(layered, defaults={"en": "1", "a": "x"})
    assert "unknown default 'en'" in caught.value.message
    assert "default a: 'x' is not an integer" in caught.value.message
    assert "Did you mean env?" in caught.value.hint


def test_arguments_by_name() -> None:
    component = Component("c", layered)
    values = component.bind({"a": 5, "b": "6", "c": "None", "env": {"A": "1"}, "rest": ["x", "-y"]}, {"a": 7})
    assert values == {"rest": ("x", "-y"), "a": 5, "b": 6, "c": "None", "env": {"A": "1"}}
    with pytest.raises(ComponentArgumentError, match=r"argument a: 1\.5"):
        component.bind({"a": 1.5})
    with pytest.raises(ComponentArgumentError, match="unknown argument 'z'"):
        component.bind({"z": 1})
    with pytest.raises(ComponentArgumentError, match="argument rest: 5 is not a list"):
        component.bind({"rest": 5})
    with pytest.raises(ComponentArgumentError, match="No closing quotation"):
        component.bind({"rest": "it's"})


def test_calls_do_not_share_defaults() -> None:
    def fn(items: list[str] = ["a"], opt: Adam = Adam(1.0, nested={})) -> AppDef:  # noqa: B006, B008
        items.append("b")
        assert opt.nested is not None
        opt.nested["n"] = 1
        return AppDef(",".join(items) + str(opt.nested))

    component = Component("c", fn)
    assert component.parse([]) == component.parse([]) == AppDef("a,b{'n': 1}")
    assert fn.__defaults__ == (["a"], Adam(1.0, nested={}))


# ---- the function itself


def test_unusable_signatures_are_reported_with_every_problem() -> None:
    class Handle: ...

    def fn(a, b: set[int], c: Handle, d: int = "x", e: Missing = 1, **kwargs: str) -> AppDef: ...  # type: ignore  # noqa: F821, PGH003

    with pytest.raises(ComponentValidationException) as caught:
        _ = Component("c", fn).parameters
    text = caught.value.message
    for part in ("'a' has no type", "set[int]", "Handle", "default of 'd'", "'e' cannot be read", "**kwargs"):
        assert part in text
    assert f"{__file__}:" in text
    assert caught.value.exit_code == 3


def test_errors_of_the_function_say_where(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> AppDef:
        print("noise")
        raise KeyError("x")

    def returns_none() -> AppDef:
        return None  # type: ignore[return-value]

    with pytest.raises(ConfigError, match=rf"KeyError: 'x' \({__file__}:\d+\)"):
        Component("c", fails).parse([])
    assert capsys.readouterr() == ("", "noise\n")  # stdout belongs to the handle
    with pytest.raises(ComponentValidationException, match="NoneType, not an AppDef"):
        Component("c", returns_none).parse([])


def test_help() -> None:
    def train(
        *args: str,
        lr: float,
        color: Color = Color.RED,
        debug: bool = False,
        env: dict[str, str] | None = None,
    ) -> AppDef:
        """Train it.

        At length, and with
        more words.

        Args:
            args: what the script gets
            lr: learning rate,
                per step
            color: the colour
        """
        raise AssertionError

    text = Component("jobs.py:train", train).help_text("shunter run jobs.py:train")
    assert text.startswith(
        "usage: shunter run jobs.py:train --lr FLOAT [--color COLOR] [--debug | --no-debug]"
    )
    assert "At length, and with more words." in text
    assert "learning rate, per step (required)" in text
    assert "the colour (one of RED, BLUE; default: RED)" in text
    assert "--debug, --no-debug" in text
    assert "can be repeated" in text
    assert max(map(len, text.splitlines())) <= 100


def test_help_without_a_docstring_and_with_a_broken_one() -> None:
    def bare(a: int) -> AppDef: ...

    assert "-a INT" in Component("c", bare).help_text()
    bare.__doc__ = "Args:\n  a b c\n\n\tRaises"
    assert "-a INT" in Component("c", bare).help_text()


# ---- round trips


def as_text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value) or isinstance(value, (list, tuple, dict)):
        encoded = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
        return json.dumps(encoded, default=lambda item: item.name)
    return str(value)


finite = st.floats(allow_nan=False)
counts = st.dictionaries(st.text(), st.integers())
TYPES = [
    (int, st.integers()),
    (float, finite),
    (str, st.text()),
    (bool, st.booleans()),
    (Color, st.sampled_from(Color)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (list[int], st.lists(st.integers())),
    (list[str], st.lists(st.text())),
    (tuple[int, str], st.tuples(st.integers(), st.text())),
    (dict[str, float], st.dictionaries(st.text(), finite)),
    (list[dict[str, list[int]]], st.lists(st.dictionaries(st.text(), st.lists(st.integers())))),
    (Adam, st.builds(Adam, finite, st.tuples(finite, finite), st.none() | counts)),
]


@given(st.data())
def test_every_value_survives_the_command_line(data: st.DataObject) -> None:
    tp, values = data.draw(st.sampled_from(TYPES))
    value = data.draw(values)
    assert one(tp, f"-x={as_text(value)}") == value
    assert (
        Component("c", _typed(tp)).bind({"x": dataclasses.asdict(value) if tp is Adam else value})["x"]
        == value
    )


def _typed(tp: Any) -> Any:
    def fn(x) -> AppDef: ...  # type: ignore[no-untyped-def]

    fn.__annotations__["x"] = tp
    return fn


words = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1)


@given(
    st.lists(
        st.sampled_from(["--msg", "--n", "-n", "x", "1", "--", "--no-f", "--f", "true", "--msg=", "-", ""])
    )
)
def test_no_command_line_gives_anything_but_values_or_an_argument_error(args: list[str]) -> None:
    def fn(*rest: str, msg: str = "", n: int = 0, f: bool = False, items: list[str] = []) -> AppDef: ...  # noqa: B006

    try:
        values = bind(fn, *args)
    except ComponentArgumentError as error:
        assert error.message  # noqa: PT017
    else:
        assert set(values) == {"rest", "msg", "n", "f", "items"}


def test_a_parameter_called_no_something_keeps_its_name() -> None:
    def fn(cache: bool = True, no_cache: bool = False) -> AppDef: ...

    assert bind(fn, "--no-cache") == {"cache": True, "no_cache": True}
