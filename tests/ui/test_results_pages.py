"""What the pages say of jobs that ran on this machine: the list at a glance, points of sweeps, reruns."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from shunter.metrics import MetricReader
from shunter.metrics.series import Series, best_by_point
from shunter.runner import get_runner
from shunter.runner.history import History
from shunter.specs.app import AppDef, Role
from shunter.specs.serialize import to_json
from shunter.specs.sweep_points import Point
from shunter.sweeps import run_sweep
from shunter.ui import job_actions, web_app
from shunter.ui.sweep_page import Axis, PointMetrics, shown_number
from tests.cluster_hosts import wait_until
from tests.ui.conftest import Page, record

SCRIPT = """
import json, sys
rate = float(sys.argv[1])
for step in range(100):
    print(json.dumps({"step": step, "loss": rate / (step + 1)}), flush=True)
if rate > 5:
    raise RuntimeError("<b>too</b> high")
"""


@pytest.fixture
def script(home: Path, tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def with_charts(page: Page, handle: str) -> str:
    """Return the page of a sweep's points, once it has drawn their metrics."""
    texts: list[str] = []

    def is_drawn() -> bool:
        texts.append(page.get("/job", handle=handle, tab="Points").text)
        return "polyline" in texts[-1]

    wait_until(is_drawn, "the points' metrics have been read")
    return texts[-1]


def test_the_list_shows_arguments_last_values_and_causes(
    page: Page, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_app, "GLANCE_PATIENCE", 60.0)
    with get_runner() as runner:
        for rate in ("1", "10"):
            runner.wait(runner.run_component("utils.python", ["--script", script, "--", rate], "local_cwd"))
    record(History(), "waiting", "PENDING", scheduler="stuck", msg="Priority")
    text = page.get("/").text
    assert f"--script {script} -- 10" in text
    assert "step 99, loss 0.01<" in text
    assert "RuntimeError: &lt;b&gt;too&lt;/b&gt; high" in text
    assert "jobs of higher priority come first" in text


def test_arguments_are_shown_as_they_are_typed(page: Page) -> None:
    history = History()
    points = {"sweep": {"points": [{"values": {"lr": value, "kind": "a"}} for value in ("1", "2")]}}
    app = to_json(AppDef("many", [Role("trainer", image="", entrypoint="python", metadata=points)]))
    record(history, "many", app=app)
    record(history, "words", component_args=["--msg", "two words"])
    record(history, "named", component_args={"lr": 0.1})
    call = AppDef("call", [Role("f", image="", entrypoint="python", metadata={"function_call": {}})])
    record(history, "call", app=to_json(call))
    text = unescape(page.get("/").text)
    for shown in ("2 points: lr=1,2 kind=a", "--msg 'two words'", "lr=0.1", "a call of a Python function"):
        assert f">{shown}</code>" in text


def test_points_are_sorted_by_the_best_value_of_a_metric(page: Page, script: str) -> None:
    points = [Point({"rate": rate}, ["--script", script, "--", rate]) for rate in ("3", "1", "2")]
    with get_runner() as runner:
        handle = run_sweep(runner, "utils.python", points, "local_cwd")
        runner.wait(handle)
    text = with_charts(page, handle)
    assert text.index(">0.01</td>") < text.index(">0.02</td>") < text.index(">0.03</td>")
    assert "lowest loss" in text
    assert 'class="best"' in text.partition("<tbody>")[2].partition("</tr>")[0]
    text = page.get("/job/points", handle=handle, metric="loss", order="max").text
    assert "highest loss" in text
    assert text.index(">3</td>") < text.index(">1</td>")  # the highest of all values, not the last ones
    assert "rate=1" in json.dumps(page.get("/metrics.json", handle=handle).json())
    assert page.get("/job/points", handle=record(History(), "single")).status_code in (404, 502)


def test_a_sweep_whose_points_are_jobs_has_a_page_too(page: Page, script: str) -> None:
    points = [Point({"rate": rate}, ["--script", script, "--name", f"n{rate}", "--", rate]) for rate in "12"]
    with get_runner() as runner:
        handle = run_sweep(runner, "utils.python", points, "local_cwd")
        assert handle.startswith("sweep://")
        runner.wait(handle)
    text = with_charts(page, handle)
    assert "lowest loss" in text
    assert text.index(">0.01</td>") < text.index(">0.02</td>")
    assert "rate=2" in json.dumps(page.get("/metrics.json", handle=handle).json())


def test_values_and_metrics_that_are_html_are_text(page: Page, tmp_path: Path, home: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>\"'"
    script = tmp_path / "train.py"
    script.write_text(f"import json\nfor k in range(3): print(json.dumps({{{hostile!r}: k}}), flush=True)\n")
    points = [Point({hostile: hostile + k}, ["--script", str(script), "--", k]) for k in "ab"]
    with get_runner() as runner:
        handle = run_sweep(runner, "utils.python", points, "local_cwd")
        runner.wait(handle)
    text = with_charts(page, handle)
    assert text.count("&lt;img src=x") > 4
    assert "<img" not in text
    assert "<img" not in page.get("/").text


def test_axes_have_numbers_in_proportion_and_words_one_above_the_other() -> None:
    assert [Axis("lr", ["1", "2", "3"]).share(text) for text in "123"] == [0, 0.5, 1]
    rates = Axis("lr", ["0.001", "0.01", "0.1"])
    assert [round(rates.share(text), 6) for text in ("0.001", "0.01", "0.1")] == [0, 0.5, 1]
    words = Axis("kind", ["adam", "sgd", "nan"])
    assert [words.share(text) for text in ("adam", "sgd", "nan")] == [0, 0.5, 1]
    assert Axis("same", ["1", "1"]).share("1") == 0.5
    assert Axis("many", [str(value) for value in range(99)]).labels == ["0", "98"]


def test_jobs_are_compared_as_points_of_a_sweep_are(page: Page, script: str) -> None:
    handles = []
    with get_runner() as runner:
        for words in (["--", "2", "--kind", "a"], ["--", "1", "--kind", "b"], ["--", "no number"]):
            handles.append(runner.run_component("utils.python", ["--script", script, *words], "local_cwd"))
            runner.wait(handles[-1])
    text = page.get("/charts", handle=handles).text
    assert "Reading the metrics" in text  # the page is there before
    assert "/charts/jobs?" in text
    texts: list[str] = []

    def is_read() -> bool:
        texts.append(page.get("/charts/jobs", handle=handles).text)
        return "polyline" in texts[-1]

    wait_until(is_read, "the metrics of the jobs have been read")
    heads, _, body = texts[-1].partition("<tbody>")
    assert [head in heads for head in (">arguments<", ">kind<", ">script<", "lowest loss")] == [1, 1, 0, 1]
    first, second, third = body.split("</tr>")[:3]
    assert ">b</td>" in first
    assert "0.01</td>" in first
    assert 'class="best"' in first
    assert ">a</td>" in second
    assert "FAILED" in third
    assert "data-refresh" not in texts[-1]  # all have ended
    found = page.get("/metrics.json", handle=handles).json()
    assert {one["label"].partition(" ")[2] for one in found["series"] if one["name"] == "loss"} == {
        "arguments=2 kind=a python/0",
        "arguments=1 kind=b python/0",
    }
    assert found["problems"] == [f"{handles[2].rpartition('/')[2]} has no metrics."]


def test_a_sweep_is_listed_with_its_best_point(
    page: Page, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_app, "GLANCE_PATIENCE", 60.0)
    points = [Point({"rate": rate}, ["--script", script, "--", rate]) for rate in ("3", "1", "2")]
    with get_runner() as runner:
        runner.wait(run_sweep(runner, "utils.python", points, "local_cwd"))
    assert "best last loss 0.01: rate=1" in page.get("/").text


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0.012345678, "0.012346"), (123456.7, "123,457"), (1e20, "1e+20")]
)
def test_numbers_are_short(value: float | None, shown: str) -> None:
    assert shown_number(value) == shown


def test_points_that_report_no_number_are_not_ranked() -> None:
    several = []
    for index, value in enumerate((2.0, float("nan"), 1.0)):
        several.append(Series("loss", "trainer", index))
        several[-1].add(value)
    assert list(best_by_point(several, "min").items()) == [(2, 1.0), (0, 2.0)]
    assert list(best_by_point(several, "max")) == [0, 2]


def test_words_of_a_rerun_are_passed_on_as_a_shell_would(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    async def run_shunter(*words: str) -> tuple[int, str, str]:
        calls.append(words)
        return 0, "local_cwd://shunter/new-1\n", ""

    monkeypatch.setattr(job_actions, "run_shunter", run_shunter)
    handle = record(History(), "old")
    answer = page.act("rerun", handle, arguments="--lr 0.1 --msg 'two words'")
    assert answer.status_code == 303
    page.act("rerun", handle)
    assert calls == [
        ("rerun", "--detach", handle, "--", "--lr", "0.1", "--msg", "two words"),
        ("rerun", "--detach", handle),
    ]
    answer = page.act("rerun", handle, arguments="--msg 'open")
    assert answer.status_code == 400
    assert "annot read the arguments" in answer.text


def test_a_job_is_compared_with_any_other(page: Page) -> None:
    history = History()
    first = record(history, "one", component_args=["--lr", "1"])
    record(history, "two", app_id="two-unique", component_args=["--lr", "2"])
    text = page.get("/job", handle=first, tab="Changes").text
    assert "two-unique" in text  # it is offered
    answer = page.get("/compare", handle=[first, "two-uni"])
    assert "two-unique" in answer.text
    assert page.get("/compare", handle=[first, "nothing"]).status_code == 404
    assert page.get("/compare", handle=[first, "foreign://shunter/x"]).status_code == 404


def test_the_definition_has_the_environment(page: Page) -> None:
    role = Role("trainer", image="python:3.12", entrypoint="python", env={"A": "<1>"})
    handle = record(History(), "job", app=to_json(AppDef("job", [role])))
    text = page.get("/job", handle=handle, tab="Definition").text
    assert "Environment of trainer" in text
    assert "&lt;1&gt;" in text
    assert "python:3.12" in text


def test_a_metric_that_is_not_there_is_replaced(home: Path, script: str) -> None:
    with get_runner() as runner:
        handle = runner.run_component("utils.python", ["--script", script, "--", "1"], "local_cwd")
        runner.wait(handle)
        with MetricReader(runner, handle) as reader:
            reader.update()
            metrics: Any = PointMetrics.of(reader.by_name(), "no such metric", "sideways")
    assert (metrics.chosen, metrics.order, metrics.best) == ("loss", "min", {0: 0.01})
