"""Finding values in lines: JSON objects, and regular expressions in their own process."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.errors import ConfigError, UsageError
from trainyard.metric_search import MetricSearch, _Expression, _last_value, parse_definitions
from trainyard.metrics.json_lines import find_objects


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"step": 10, "loss": 0.31}', ("", 10, {"loss": 0.31})),
        ('{"step": 1, "loss": NaN, "phase": "train", "done": false}', ("", 1, {"loss": "nan"})),
        ('[3]: {"global_step": 2, "epoch": 0.5, "lr": 1e-5}', ("3", 2, {"epoch": 0.5, "lr": 1e-5})),
        ('2026-11-22 10:00:00 INFO {"iteration": 4, "acc": 1}', ("", 4, {"acc": 1.0})),
        ("{'loss': 2.5, 'grad_norm': nan, 'epoch': 0.25}", ("", 0.25, {"loss": 2.5, "grad_norm": "nan"})),
        ('{"loss": 0.31}', None),
        ('{"step": "10", "loss": 0.31}', None),
        ('{"step": 10}', None),
        ('{"step": 10, "loss": 0.31} and more', None),
        ('["step", {"step": 3}', None),
        ('{"step": 10, "loss": ', None),
        ('"step": 10', None),
    ],
)
def test_a_line_that_is_an_object_of_numbers_with_a_step(line, found):
    hits = list(find_objects(f"before\n{line}\nafter\n".encode()))
    if found is None:
        assert hits == []
        return
    [(at, rank, step, numbers)] = hits
    assert at == 7
    rounded = {name: "nan" if value != value else value for name, value in numbers.items()}
    assert (rank, step, rounded) == found


@given(st.binary(max_size=200))
def test_any_bytes_can_be_searched_for_objects(data):
    list(find_objects(data))
    list(find_objects(b'{"step": 1, ' + data + b"}"))


REGEXES = [
    r"loss=([0-9.]+)",
    r"^a(\d)$",
    r"b\s*(\d)",
    r"[^x](\d)",
    r"(?!q)(\d)",
    r"\w+?(\d)",
    r"x*+(\d)",
    r"(é\d)?(\d)",
]


@given(st.lists(st.text(alphabet="abx1 2é.loss=q", max_size=12), max_size=8), st.sampled_from(REGEXES))
def test_a_block_has_the_values_of_its_lines(lines, regex):
    text = "\n".join(lines)
    expression = _Expression(regex)
    by_line = [value for line in lines if (value := _last_value(expression.line, line)) is not None]
    assert [value for _, value in expression.hits(text)] == by_line


def test_values_and_places_in_bytes():
    lines = ["ünï loss: 3", "nothing", "loss: 2 loss: 1", "acc=0.5\rloss: 9", "loss: none"]
    block = "\n".join(lines).encode()
    with MetricSearch([("loss", r"loss: (\S+)"), ("acc", r"acc=([0-9.]+)"), ("bad", "(")]) as search:
        hits = search.search(block)
        again = search.search(b"loss: 4\n")
    assert [(block[at:][:3].decode("utf-8", "ignore"), index, value) for at, index, value in hits] == [
        ("ün", 0, 3.0),
        ("los", 0, 1.0),
        ("acc", 1, 0.5),
        ("los", 0, 9.0),
    ]
    assert again == [(0, 0, 4.0)]
    assert search.problems == []


@pytest.mark.slow
def test_an_expression_that_takes_forever_is_given_up_and_the_others_go_on():
    block = b"loss: 1\n" + b"a" * 5000 + b"!\nloss: 2\n"
    with MetricSearch([("evil", r"(a+)+$"), ("loss", r"loss: (\d)")]) as search:
        assert [value for _, _, value in search.search(block)] == [1.0, 2.0]
        assert search.search(block) != []
    [problem] = search.problems
    assert "evil" in problem


def test_definitions_of_the_command_line():
    assert parse_definitions(["loss=loss=(.*)", "a.b=(x)"]) == {"loss": "loss=(.*)", "a.b": "(x)"}
    for text, word in [("loss", "NAME=REGEX"), ("=(x)", "NAME=REGEX"), ("loss=", "NAME=REGEX")]:
        with pytest.raises(UsageError, match=word):
            parse_definitions([text])
    with pytest.raises(UsageError, match="twice"):
        parse_definitions(["a=(x)", "a=(y)"])
    with pytest.raises(ConfigError, match="parentheses"):
        parse_definitions(["a=x"])
    with pytest.raises(ConfigError, match="not valid"):
        parse_definitions(["a=("])


def test_integers_of_many_digits_do_no_harm():
    assert list(find_objects(json.dumps({"step": 1, "n": 10**400}).encode())) == []
