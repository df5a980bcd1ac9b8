"""`shunter metrics` and `shunter plot`."""

from __future__ import annotations

import csv
import io
import re

import pytest

from tests.cli.conftest import Cli

SCRIPT = """
import json, sys
factor = float(sys.argv[1])
for step in range(40):
    print(json.dumps({"step": step, "loss": factor / (step + 1)}))
    print(f"acc={step / 40}")
"""


@pytest.fixture
def jobs(cli: Cli) -> list[str]:
    (cli.directory / "script.py").write_text(SCRIPT)
    start = ["run", "--workspace", "", "--metric", r"acc=acc=(\S+)", "utils.python", "--script", "script.py"]
    return [cli(*start, "--", factor).out.strip() for factor in ("1", "2")]


def test_metrics_and_plots_of_jobs(cli: Cli, jobs: list[str]) -> None:
    lines = [line.split() for line in cli("metrics", jobs[0], "--name", "[la]*").out.splitlines()]
    assert lines[0] == ["METRIC", "REPLICAS", "LAST", "MIN", "MAX", "STEP", "VALUES"]
    assert lines[1] == ["loss", "script/0", "0.025", "0.025", "1", "39", "40"] or lines[1][0] == "loss"
    assert [lines[2][0], *lines[2][2:]] == ["acc", "0.975", "0", "0.975", "39", "40"]

    compared = cli("metrics", *jobs, "--name", "loss").out.splitlines()
    assert compared[0].split() == ["METRIC", *(handle.rpartition("/")[2] for handle in jobs)]
    assert [line.split()[-2:] for line in compared[1:]] == [
        ["0.025", "0.05"],
        ["0.025", "0.05"],
        ["1", "2"],
        ["39", "39"],
    ]

    found = cli("metrics", "--json", *jobs).json
    assert found[jobs[1]]["loss"][0]["values"][:2] == [2, 1]
    rows = list(csv.DictReader(io.StringIO(cli("metrics", "--format", "csv", *jobs).out)))
    last = [row for row in rows if row["metric"] == "loss" and row["job"] == jobs[1]][-1]
    assert (last["step"], last["value"], last["source"]) == ("39", "0.05", "log")

    assert cli("metrics", "--watch", "--format", "csv", jobs[0]).out.startswith("job,metric,")
    assert "more=" not in cli("metrics", jobs[0], "--metric", "twice=acc=0.5()").out

    plot = cli("plot", "loss", *jobs, "--width", "60", "--height", "12", PYTHONIOENCODING="utf8")
    assert plot.out.splitlines()[0] == "loss"
    assert "A " in plot.out
    assert f"B {jobs[1].rpartition('/')[2]}: last 0.05, min 0.05, max 2, 40 values" in plot.out
    assert any("\u2800" < character < "\u28ff" for character in plot.out)
    ascii_plot = cli("plot", "loss", jobs[0], "--by", "time", PYTHONIOENCODING="ascii").out
    assert ascii_plot.isascii()
    assert "*" in ascii_plot

    assert "Did you mean loss?" in cli("plot", "los", jobs[0], code=2).err
    assert "loss" in cli("plot", "nothing", *jobs, code=2).err
    assert "--metric" in cli("metrics", jobs[0], "--metric", "a=b", code=3).err


def test_a_plot_begins_with_what_the_job_says_not_with_what_it_used(cli: Cli) -> None:
    (cli.directory / "script.py").write_text('print(\'{"step": 1, "system/cpu_percent": 1, "loss": 2}\')\n')
    cli("run", "--name", "first", "./script.py")
    assert cli("plot").out.startswith("loss\n")
    cli("run", "utils.echo")
    found = cli("plot", "first")  # the name of a job, not of a metric
    assert found.out.startswith("loss\n")
    assert "A first-" in found.out


@pytest.mark.slow
def test_pictures(cli: Cli, jobs: list[str]) -> None:
    for name, beginning in {"a.png": b"\x89PNG", "a.svg": b"<?xml"}.items():
        cli("plot", "loss", *jobs, "--log-scale", "--output", name)
        assert (cli.directory / name).read_bytes().startswith(beginning)
    assert ".png or .svg" in cli("plot", "loss", jobs[0], "-o", "a.doc", code=3).err


def test_a_metric_that_cannot_be_found_is_refused_before_the_start(cli: Cli) -> None:
    assert "parentheses" in cli("run", "--metric", "loss=loss", "utils.echo", code=3).err
    assert cli("list", "--json").json == []


def test_a_job_without_metrics_says_how_to_have_them(cli: Cli) -> None:
    handle = cli("run", "utils.echo", "--msg", "hi").out.strip()
    assert "--metric" in cli("metrics", handle, "--name", "loss").out


SMALL = 'import sys\nfor step in range(3, 6):\n    print(f"epoch {step} loss: {sys.argv[2]}e-0{step}")\n'


def test_a_sweep_whose_metric_nobody_declared(cli: Cli) -> None:
    (cli.directory / "train.py").write_text(SMALL)
    cli("sweep", "--wait", "./train.py", "--lr", "3,2")
    rows = cli("points", "--best", "min:loss", "--json").json
    assert [(row["values"]["lr"], row["metric"]) for row in rows] == [("2", 2e-05), ("3", 3e-05)]
    header, first, second, *_ = (line.split() for line in cli("points").out.splitlines())
    assert header[3:5] == ["loss", "lr"]
    assert [first[-2:], second[-2:]] == [["3e-05", "3"], ["2e-05", "2"]]
    assert "min 2e-05" in cli("plot", "loss").out
    assert "Did you mean loss?" in cli("plot", "los", code=2).err
    assert [line.split()[0] for line in cli("metrics").out.splitlines() if "system/" not in line] == [
        "METRIC",
        "loss",
    ]
    assert "by its name" in cli("points", "--best", "min:x", code=3).err


def test_an_expression_that_reads_a_part_of_a_number_is_named(cli: Cli) -> None:
    (cli.directory / "train.py").write_text(SMALL)
    cli("sweep", "--wait", "--metric", "loss=loss: ([0-9.]+)", "./train.py", "--lr", "3,2")
    for command in (["points", "--best", "min:loss"], ["plot", "loss"], ["metrics"]):
        said = cli(*command).err
        assert re.search(r"of loss reads (\d) of \1e-03; `--metric loss` without an expression", said), said
    cli("sweep", "--wait", "--metric", "loss", "./train.py", "--lr", "3,2")
    found = cli("metrics", "--json")
    assert min(series["min"] for series in next(iter(found.json.values()))["loss"]) == 2e-05
    assert found.err == ""


@pytest.mark.slow
def test_what_replicas_use_has_units(cli: Cli) -> None:
    cli("run", "--wait", "utils.sh", "--", "sleep", "2.5")
    lines = cli("metrics", "--name", "system/memory_bytes").out.splitlines()
    assert lines[1].split()[3] in ("KiB", "MiB", "GiB"), lines
    assert "system/memory_bytes" in cli("plot").out
