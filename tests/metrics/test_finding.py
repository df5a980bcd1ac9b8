"""Finding values in lines: JSON objects, names, and regular expressions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shunter.errors import ConfigError, UsageError
from shunter.metric_search import lines_of, parse_definitions
from shunter.metrics.json_lines import find_objects
from shunter.metrics.undeclared import UndeclaredMetrics

RECORDED = Path(__file__).with_name("recorded")


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


def test_definitions_of_the_command_line():
    texts = ["loss=loss=(.*)", "a.b=(x)", "eval/loss", "valid_0's l2", "time (ms)"]
    assert parse_definitions(texts) == {
        "loss": "loss=(.*)",
        "a.b": "(x)",
        "eval/loss": "",
        "valid_0's l2": "",
        "time (ms)": "",
    }
    for text in ("", "=(x)", "loss=", "loss: ([0-9.]+)", "loss (.*)", "a,b"):
        with pytest.raises(UsageError, match="neither NAME nor NAME=REGEX"):
            parse_definitions([text])
    with pytest.raises(UsageError, match="twice"):
        parse_definitions(["a=(x)", "a=(y)"])
    with pytest.raises(ConfigError, match="parentheses"):
        parse_definitions(["a=x"])
    with pytest.raises(ConfigError, match="not valid"):
        parse_definitions(["a=("])


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("lightning", {"train_loss", "val_loss"}),
        (
            "scikit-learn",
            {"loss", "Validation score", "Norm", "NNZs", "Bias", "T", "Avg. loss", "Objective"}
            | {"training time", "score", "time", "inertia"},
        ),
        ("no_training", {"copied", "speed"}),
    ],
)
def test_what_is_found_in_whole_logs_that_nobody_prepared(name, metrics):
    undeclared = UndeclaredMetrics((), discovers=True)
    for _, line in lines_of((RECORDED / f"{name}.log").read_bytes()):
        for table, metric, value in undeclared.values(line):
            table.add(metric, ("r", 0), value)
    assert set(undeclared.by_name(())) == metrics


def test_integers_of_many_digits_do_no_harm():
    assert list(find_objects(json.dumps({"step": 1, "n": 10**400}).encode())) == []
