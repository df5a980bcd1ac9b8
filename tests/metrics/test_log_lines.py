"""Metrics in lines that common training loops print, found by the names of the metrics alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter._toolkit import metric_shapes
from shunter._toolkit.metrics import Definition
from shunter.metric_search import MetricSearch, lines_of, pairs_in

# By program: lines, and the values of metrics in them; null where a name must not be found.
EXAMPLES = Path(__file__).with_name("log_lines.jsonl")
LINES = [json.loads(line) for line in EXAMPLES.read_text().splitlines()]


def found(name: str, text: str) -> float | None:
    search = MetricSearch([(name, "")])
    values = [value for _, line in lines_of(text.encode()) for _, value in search.values(line)]
    return values[-1] if values else None


@pytest.mark.parametrize("example", LINES, ids=[example["program"] for example in LINES])
def test_a_name_is_enough(example: dict[str, Any]) -> None:
    for name, value in example["values"].items():
        wanted = None if value is None else float(value)
        assert str(found(name, example["text"])) == str(wanted), name
        lines = re.split("[\r\n]", example["text"])
        in_the_job = [value for line in lines if (value := Definition(name).value(line.encode())) is not None]
        assert str(in_the_job[-1:]) == str([wanted] if wanted is not None else []), name


numbers = st.floats(width=64)
formats = st.sampled_from(["{}", "{:e}", "{:.3f}", "{:g}", "{:+.2E}", "{:,.3f}", "{:<12.4f}", "{:>12.4f}"])
places = st.sampled_from(
    ["loss={}", "a=1, loss: {}, b=2", '{{"loss": {}}}', "ep 1 loss {} acc 0.5", "[loss = {}]"]
)


@given(numbers, formats, places)
def test_a_printed_number_comes_back(value: float, form: str, place: str) -> None:
    text = form.format(value)
    assert str(found("loss", place.format(text))) == str(float(text.replace(",", "")))


@given(st.text("loss=: |\"'()[]-+.,eE019xin\t\x1b[m"), st.sampled_from(["loss", "l s", "x=", "a(b"]))
def test_any_line_can_be_searched(line: str, name: str) -> None:
    found(name, line)
    list(pairs_in(line))


@pytest.mark.parametrize(
    "line",
    [
        "loss" + " " * 50_000,
        "loss=" + "1" * 50_000 + "_",
        "| a" + " b" * 30_000,
        "a" * 50_000,
        "loss(" * 10_000,
    ],
)
def test_long_lines_take_no_time(line: str) -> None:
    """Without a limit: where time grows with the square, the test's own limit ends it."""
    assert found("loss", line + "_loss=3") is None or "1" in line
    list(pairs_in(line))


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("epoch 1 loss 1.88 accuracy 0.79", ["loss", "accuracy"]),
        ("Listening on port 8080, cuda:0, localhost:8080, [INFO] train.py:57 - seed=1 rank: 3", []),
        ("2024-01-02 10:11:12,123 commit=3f2a9c ip=10.0.0.1 python=3.11.2 eta: 0:12:34 step 3/100", []),
        ("val_loss improved from 0.31202 to 0.29481 in 3.2 s, about 1.5 of 2.5", []),
        ("step 250: train loss 1.9712, val loss 2.0733", ["train loss", "val loss"]),
        ("[10]\ttrain-rmse:0.12034\teval-rmse:0.34111", ["train-rmse", "eval-rmse"]),
        (
            "| lm loss: 6.7E+00 | loss scale: 65536.0 | grad norm: 1.2 |",
            ["lm loss", "loss scale", "grad norm"],
        ),
        ("{'loss': 0.5, 'learning_rate': 5e-05}", ["loss", "learning_rate"]),
        ("train:  12%|█ | 120/1000 [00:10<01:00, 12.1it/s, loss=3.21]", ["loss"]),
        ("1|10|Loss: 1.23456:   1%|▏| 10/1000 [00:12<20:12,  1.22s/it]", ["Loss"]),
        ("| train_inner | epoch 001:    100 / 3600 loss=15.2, lr=1e-05", ["loss", "lr"]),
        ("Engine INFO: Epoch[2] Complete. WARNING: 3 of 5 files, ts=1700000000.123", []),
        ("[50]\ttraining's auc: 0.7\tvalid_1's auc: 0.6", ["training's auc", "valid_1's auc"]),
        ("value: -0.8 and parameters: {'lr': 1e-05}. Best is trial 2 with value: -0.9.", ["value", "lr"]),
        ("norm 2.5112 (-0.5z)| lr 6.00e-04 | 26.5 ms | 45.1% bf16 MFU", ["norm", "lr"]),
        ("'val_loss' reached 0.40240, Test set loss: 0.5, x: -0,5", ["Test set loss"]),
    ],
)
def test_names_in_a_line(line: str, names: list[str]) -> None:
    pairs = list(pairs_in(line))
    assert [name for name, *_ in pairs] == names
    assert all(str(found(name, line)) == str(value) for name, value, *_ in pairs)


def test_what_sagemaker_gets_is_short_and_without_lookaround() -> None:
    regex = metric_shapes.expression("n" * 200)
    assert len(regex) <= 500
    assert not re.search(r"\(\?[=!<]", regex)


def test_an_expression_that_reads_a_part_of_a_number_is_named() -> None:
    pairs = [("loss", "loss: ([0-9.]+)"), ("lr", r"lr.*([0-9.]+) x"), ("x", r"x.*?(\d+)"), ("n", r"n: (\d+)")]
    search = MetricSearch(pairs)
    for _ in range(2):
        assert dict(search.values("loss: 3e-05 lr 0.25 x=-7 n: 10/100")) == {
            "loss": 3,
            "lr": 5,
            "x": 7,
            "n": 10,
        }
    assert [re.search(r" of (\w+) reads (.*?);", problem).groups() for problem in search.problems] == [  # type: ignore[union-attr]
        ("loss", "3 of 3e-05"),
        ("lr", "5 of 0.25"),
        ("x", "7 of -7"),
    ]
