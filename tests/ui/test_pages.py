"""What the pages show."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from shunter.errors import UnreachableError
from shunter.runner import Runner, get_runner
from shunter.runner.history import History
from shunter.runner.records import JobRecord
from shunter.schedulers.registry import get_scheduler_factory
from shunter.schedulers.responses import LogBlock, LogQuery
from shunter.specs.app import AppDef, Role
from shunter.specs.resources import Resource
from shunter.specs.serialize import to_json
from shunter.ui import runner_pool, web_app
from shunter.ui.log_html import as_html
from shunter.ui.log_spool import LogCopy
from tests.ui.conftest import ORIGIN, Page, record


def names(text: str) -> list[str]:
    return re.findall(r'class="name"><a[^>]*>([^<]*)', text)


def test_the_list_is_shown_page_by_page(page: Page) -> None:
    history = History()
    for number in range(120):
        record(history, f"run-{number}")
    assert names(page.get("/").text) == [f"run-{number}" for number in range(119, 69, -1)]
    third = page.get("/", page=3).text
    assert names(third) == [f"run-{number}" for number in range(19, -1, -1)]
    assert "101 to 120 of 120" in third
    assert names(page.get("/", page=99).text) == []
    assert names(page.get("/", page="-1").text) == names(page.get("/").text)


def test_filters_and_search(page: Page) -> None:
    history = History()
    record(history, "train-a", "FAILED", msg="out of memory")
    record(history, "train-b", component_args=["--lr", "0.3", "--seed=2"])
    record(history, "eval", "FAILED", scheduler="slurm")
    assert names(page.get("/", q="train").text) == ["train-b", "train-a"]
    assert names(page.get("/", q="*-a").text) == ["train-a"]
    for arguments in ("--lr 0.3", "lr=0.3", "train seed 2"):
        assert names(page.get("/", q=arguments).text) == ["train-b"]
    assert names(page.get("/", q="lr 0.4").text) == []
    assert names(page.get("/", state="FAILED").text) == ["eval", "train-a"]
    assert names(page.get("/", state=["FAILED", "SUCCEEDED"]).text) == ["eval", "train-b", "train-a"]
    assert names(page.get("/", state="FAILED", scheduler="slurm").text) == ["eval"]
    assert names(page.get("/", state="NONSENSE").text) == ["eval", "train-b", "train-a"]
    assert "out of memory" in page.get("/").text


@pytest.mark.parametrize(
    ("query", "hint"),
    [
        ({"q": "nothing"}, "No job of this machine&#39;s history matches"),
        ({"page": 9}, "There are no older jobs"),
    ],
)
def test_an_empty_list_says_why_and_leads_on(page: Page, query: dict[str, Any], hint: str) -> None:
    assert "shunter run ./train.py" in page.get("/").text
    record(History(), "run")
    assert "shunter run ./train.py" not in page.get("/").text
    text = page.get("/", **query).text
    assert hint in text
    assert '<a href="/">' in text.partition("<tbody>")[2]


def test_refused_submissions_are_shown_on_demand(page: Page) -> None:
    history = History()
    handle = record(history, "accepted")
    key = history.find(handle).key  # type: ignore[union-attr]
    history.amend(key, phase="refused", msg="no such queue")
    assert names(page.get("/").text) == []
    assert "no such queue" in page.get("/", state="REFUSED").text


def test_a_page_reads_no_more_jobs_than_it_shows(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History()
    for number in range(300):
        record(history, f"run-{number}")
    made = []
    plain = JobRecord.from_row

    def counted(values: Any) -> JobRecord:
        made.append(values)
        return plain(values)

    monkeypatch.setattr(JobRecord, "from_row", counted)
    assert len(names(page.get("/jobs", page=2).text)) == 50
    assert len(made) == 50


class Stuck:
    """Makes a scheduler that does not answer before `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.error: Exception | None = None

    def __call__(self, session_name: str, **_: object) -> Any:
        scheduler = get_scheduler_factory("local_cwd")(session_name)
        stuck = self

        def describe(app_id: str) -> None:
            stuck.answers.wait(60)
            if stuck.error:
                raise stuck.error

        scheduler.describe = describe  # type: ignore[method-assign]
        scheduler.describe_many = lambda ids: {each: describe(each) for each in ids}  # type: ignore[method-assign,func-returns-value]
        return scheduler


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Any:
    stuck = Stuck()
    factories = {"local_cwd": get_scheduler_factory("local_cwd"), "stuck": stuck}
    monkeypatch.setattr(runner_pool, "get_runner", lambda: Runner("shunter", factories))
    monkeypatch.setattr(runner_pool, "PATIENCE", 0.2)
    yield stuck
    stuck.answers.set()


def test_a_scheduler_that_does_not_answer_holds_nothing_up(stuck: Stuck, page: Page) -> None:
    history = History()
    handle = record(history, "there", "RUNNING", scheduler="stuck")
    record(history, "here")
    text = page.get("/").text
    assert names(text) == ["here", "there"]
    assert "stuck cannot be reached, so its jobs are shown as last seen" in text
    assert "not reachable now" in text
    for _ in range(3 * runner_pool.MOST_CALLS):  # however often it is looked at
        assert page.get("/job/status", handle=handle).status_code == 200
    status = page.get("/job/status", handle=handle).text
    assert "As last seen" in status
    assert "RUNNING" in status
    assert names(page.get("/").text) == ["here", "there"]


def test_a_scheduler_that_refuses_says_why(stuck: Stuck, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_pool, "PATIENCE", 60)
    monkeypatch.setattr("shunter.ui.web_app.LIST_PATIENCE", 60)
    record(History(), "there", "RUNNING", scheduler="stuck")
    stuck.error = UnreachableError("no route to <b>host</b>")
    stuck.answers.set()
    text = page.get("/").text
    assert "no route to &lt;b&gt;host&lt;/b&gt;" in text
    assert "not reachable now" in text


def test_jobs_that_were_started_elsewhere(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    with runner_pool.get_runner() as runner:
        handle = runner.run_component("utils.sh", ["true"], "local_cwd")
        runner.wait(handle)
    path = "/jobs/elsewhere"
    assert "/jobs/elsewhere?scheduler=local_cwd" in page.get("/", scheduler="local_cwd").text
    assert "Started elsewhere" not in page.get(path, scheduler="local_cwd").text
    monkeypatch.setattr(History, "known", lambda *_, **__: set())
    text = page.get(path, scheduler="local_cwd").text
    assert quote(handle, safe="") in text
    assert "SUCCEEDED" in text
    assert "Started elsewhere" not in page.get(path, scheduler="local_cwd", state="FAILED").text
    assert page.get(path, scheduler="nowhere").status_code == 404


def test_actions_on_several_jobs_say_what_came_of_each(page: Page) -> None:
    history = History()
    handles = [record(history, "one"), record(history, "two"), record(history, "three", scheduler="slurm")]
    answer = page.act("delete", *handles)
    assert answer.status_code == 200
    assert all(handle in answer.text for handle in handles)
    assert {history.find(handle).phase for handle in handles[:2]} == {"deleted"}  # type: ignore[union-attr]
    assert page.act("explode", handles[0]).status_code == 400
    assert page.act("cancel").status_code == 400


def test_an_action_on_all_that_match_is_confirmed_with_their_number(page: Page) -> None:
    history = History()
    old = [record(history, f"exp-{number}", "SUCCEEDED" if number % 2 else "FAILED") for number in range(130)]
    record(history, "other")
    running = record(history, "exp-running", "RUNNING", scheduler="stuck")
    assert "/jobs/all?q=exp&amp;action=delete" in page.get("/", q="exp").text
    asked = page.get("/jobs/all", q="exp", action="delete").text
    assert "Delete 130 jobs?" in asked
    assert "1 more match, but have not ended" in asked
    assert all(handle not in asked for handle in old)  # the filter travels, not their names
    until = re.search(r'name="until" value="(\d+)"', asked)
    assert until is not None
    later = record(history, "exp-later")  # submitted between the question and the answer
    filtered = {"all": "yes", "q": "exp", "until": until[1]}
    answer = page.act("delete", **filtered)
    assert answer.status_code == 303
    progress = page.client.get(answer.headers["location"]).text
    while "<progress" in progress:
        progress = page.client.get(answer.headers["location"]).text
    assert "Delete: 130 of 130 done" in progress
    kept = {history.find(handle).phase for handle in (running, later)}  # type: ignore[union-attr]
    assert kept == {"submitted"}
    assert {history.find(handle).phase for handle in old} == {"deleted"}  # type: ignore[union-attr]
    assert page.act("delete", **filtered).status_code == 400  # they are gone
    assert page.act("delete", **{**filtered, "until": "x"}).status_code == 400
    assert page.client.post("/jobs/act", data=filtered, headers={"origin": ORIGIN}).status_code == 403
    assert page.get("/jobs/progress", id="unknown").status_code == 404
    assert "There is no job to cancel" in page.get("/jobs/all", q="exp-1", action="cancel").text
    assert page.get("/jobs/all", action="explode").status_code == 400


def test_a_rerun_that_cannot_be_says_why(page: Page) -> None:
    handle = record(History(), "gone", cwd="/nonexistent")
    assert "which cannot be entered" in page.act("rerun", handle).text


def test_two_jobs_are_compared(page: Page) -> None:
    history = History()
    handles = [record(history, "run", cfg={"lr": 1}), record(history, "run", cfg={"lr": "<2>"})]
    text = page.get("/compare", handle=handles).text
    assert "<del>1</del>" in text, text
    assert "<ins>&lt;2&gt;</ins>" in text
    assert "<ins>&lt;2&gt;</ins>" in page.get("/job", handle=handles[1], tab="Changes").text
    assert page.get("/compare", handle=handles[:1]).status_code == 400
    handles = [record(history, "run", component_args=["--msg", text]) for text in ("a b", "c")]
    assert "<ins>--msg c</ins>" in page.get("/compare", handle=handles).text


def test_a_job_shows_what_it_asked_for_and_has_used(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = Resource(cpu=4, gpu=1, memMB=16 << 10)
    role = Role("trainer", "", entrypoint="python", num_replicas=2, resource=resource)
    handle = record(History(), "run", app=to_json(AppDef("run", [role])))
    text = page.get("/job", handle=handle).text
    assert "2 replicas with 1 GPU, 4 CPUs, 16.0 GiB memory" in text
    assert "/job/used?" in text
    monkeypatch.setattr(web_app, "use_lines", lambda *_: ["trainer: used <9> GiB"])
    text = page.get("/job/used", handle=handle).text
    assert "trainer: used &lt;9&gt; GiB" in text
    assert "data-refresh" not in text  # it has ended


def test_charts_of_no_jobs_and_of_too_many(page: Page) -> None:
    assert "Select jobs" in page.get("/charts").text
    handles = [f"local_cwd://shunter/job-{number}" for number in range(30)]
    assert page.get("/charts", handle=handles).status_code == 400


# ---- lines of logs


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain\n", "plain"),
        (b"<b>&\n", "&lt;b&gt;&amp;"),
        (b"\x1b[31mred\x1b[0m no\n", '<span class="c1">red</span> no'),
        (b"\x1b[1;32mboth\x1b[39mbold\n", '<span class="b c2">both</span><span class="b">bold</span>'),
        (b"\x1b[38;5;200mfar\x1b[m\n", "far"),
        (b"\x1b[2J\x1b[1;1Hcleared\n", "cleared"),
        (b"\x1b]0;title\x07after\n", "after"),
        (b"\x1b]8;;javascript:alert(1)\x1b\\link\x1b]8;;\x1b\\\n", "link"),
        (b"\x1b]0;never ends", ""),
        (b"\x00\x08\x7f\n", "\\x00\\x08\\x7f"),
        ("\u202egnp.exe\n".encode(), "\\u202egnp.exe"),
        (b"\xff\xfe\n", "\ufffd\ufffd"),
        (b"\x1b[31;\x1b[<script>\n", "31;cript&gt;"),
    ],
)
def test_lines_are_harmless(line: bytes, shown: str) -> None:
    assert as_html(line) == f'<div class="l">{shown}</div>'


def test_progress_bars_and_long_lines() -> None:
    assert as_html(b"10%\r20%\r\n") == '<div class="l over">10%</div><div class="l">20%</div>'
    assert "96000 more characters" in as_html(b"x" * 100_000)


# ---- logs: of schedulers that have no ranges, and searches


@pytest.fixture
def without_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "log_part", lambda *_: None)


def counted(count: int) -> str:
    """Return a job that has written this many lines."""
    with runner_pool.get_runner() as runner:
        script = f"for i in $(seq {count}); do echo line $i; done"
        handle = runner.run_component("utils.sh", ["sh", "-c", script], "local_cwd")
        runner.wait(handle)
    return handle


def lines(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"line (\d+)<", text)]


@pytest.mark.slow
def test_any_part_of_a_log_without_ranges_is_shown_from_a_copy(without_ranges: None, page: Page) -> None:
    handle = counted(9000)
    place = {"handle": handle, "role": "sh", "replica": 0}
    end = page.get("/job/log", **place).text
    while "is being read" in end:  # on a slow machine
        end = page.get("/job/log", **place).text
    assert lines(end)[-1] == 9000
    assert 1 < lines(end)[0] < 9000
    found = re.search(r"/job/log/earlier\?[^\"]*end=([^\"&]*)", end)
    assert found is not None
    earlier = page.get("/job/log/earlier", **place, end=found[1]).text
    assert lines(earlier)[-1] == lines(end)[0] - 1
    assert lines(page.get("/job/log", **place, at=0).text)[0] == 1
    tail = page.get("/job/log/tail", **place).text
    assert lines(tail) == list(range(1, 9001))
    assert tail.endswith("event: ended\ndata: the job has ended\n\n")
    assert "line 8000" in page.get("/job/log/search", **place, q="^line 80+$").text
    assert lines(page.get("/job/log/search", **place, q="^line [0-9]+$", back="1").text)[-1] == 9000
    assert not list(Path(os.environ["SHUNTER_HOME"]).rglob("tmp*"))  # the copy has no name


def test_while_a_log_is_copied_its_last_lines_are_shown(
    without_ranges: None, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = counted(3)
    goes_on = threading.Event()

    def blocks(self: Runner, handle: str, replicas: Any, query: LogQuery) -> Iterator[LogBlock]:
        if query.last is not None:
            yield LogBlock("sh", 0, b"line 9\n")
            return
        yield LogBlock("sh", 0, b"line 1\n")
        goes_on.wait()
        yield LogBlock("sh", 0, b"line 2\n")

    monkeypatch.setattr(Runner, "log_blocks", blocks)
    monkeypatch.setattr(LogCopy, "is_settled", lambda copy, _: copy.has_ended())
    place = {"handle": handle, "role": "sh", "replica": 0}
    text = page.get("/job/log", **place).text
    assert lines(text) == [9]
    assert "The rest is being read: 7 B so far" in text
    assert lines(page.get("/job/log", **place, at=0).text) == [1]  # the beginning need not wait
    goes_on.set()
    while "is being read" in text:
        text = page.get("/job/log", **place).text
    assert lines(text) == [1, 2]


def test_earlier_attempts_are_in_the_timeline_and_lead_to_their_logs(page: Page, tmp_path: Path) -> None:
    with runner_pool.get_runner() as runner:
        script = f"echo said >>{tmp_path}/said; wc -l <{tmp_path}/said; exit 3"
        role = Role("sh", image="", entrypoint="sh", args=["-c", script])
        role.max_retries = 2
        handle = runner.run(AppDef("again", [role]), "local_cwd")
        runner.wait(handle)
    text = page.get("/job", handle=handle).text
    assert text.count("bar-failed") == 3
    links = [unescape(link) for link in re.findall(r'href="(/job[^"]*#log)"', text)]
    assert len(links) == 2
    assert text.count("</a>: exit code 3<") == 2
    for number, link in enumerate(links, 1):
        shown = re.findall(r'class="l">(\d+)<', page.client.get(link).text)
        assert shown == [str(each) for each in range(number, 4)]


@pytest.mark.parametrize("handle", ["local_cwd://x/..", "slurm://x/..", "local_cwd://../../../../etc/passwd"])
def test_no_name_leads_out_of_the_folders_of_jobs(page: Page, handle: str) -> None:
    """Logs of a job that does not exist, and of a replica that is called like a path."""
    real = counted(1)
    for path in ("/job/log", "/job/log/earlier", "/job/log/later", "/job/log/search", "/job/log/tail"):
        for place in ({"handle": handle, "role": ".."}, {"handle": real, "role": "../../.."}):
            text = page.get(path, **place, replica=0, q="root", start="0.0.0").text
            assert "root:" not in text
            assert 'class="l' not in text
    assert page.act("delete", handle).status_code == 200
    assert page.get("/job", handle=real).status_code == 200


@pytest.mark.slow
def test_a_search_goes_from_part_to_part(page: Page) -> None:
    handle = counted(60_000)
    place = {"handle": handle, "role": "sh", "replica": 0, "q": "line [0-9]*777$"}
    wanted = [number for number in range(1, 60_001) if number % 1000 == 777]

    def all_found(where: str, **direction: str) -> list[list[int]]:
        """Follow the links one way; returns the numbers of each answer."""
        answers: list[list[int]] = []
        place_name, text = where, page.get("/job/log/search", **place, **direction).text
        while following := re.search(rf"/job/log/search\?[^\"]*{place_name}=([^\"&]*)", text):
            answers.append([int(number) for number in re.findall(r'<div class="l hit">line (\d+)<', text)])
            text = page.get("/job/log/search", **place, **direction, **{place_name: following[1]}).text
        assert ("No earlier lines match" if direction else "No more lines match") in text
        return answers

    assert [number for answer in all_found("start") for number in answer] == wanted
    assert [number for answer in reversed(all_found("end", back="1")) for number in answer] == wanted
    assert "is not a regular expression" in page.get("/job/log/search", **{**place, "q": "("}).text
    assert page.get("/job/log/search", **{**place, "q": ""}).status_code == 400


def test_a_job_begins_with_the_log_of_the_replica_that_failed(page: Page, tmp_path: Path) -> None:
    script = "test $0 = 0 || { echo here it $((1))broke; exit 3; }"
    role = Role("trainer", "", entrypoint="sh", args=["-c", script, "${replica_id}"], num_replicas=2)
    with get_runner() as runner:
        handle = runner.run(AppDef("job", [role]), "local_cwd", {}, workspace=None)
        runner.wait(handle)
    text = page.get("/job", handle=handle).text
    assert "here it 1broke" in text
    assert 'value="trainer/1" selected' in text
    text = page.get("/job", handle=handle, place="trainer/0").text
    assert "here it 1broke" not in text
    assert "It wrote nothing." in text


def test_a_log_that_cannot_be_read_says_why(page: Page) -> None:
    handle = record(History(), "gone")
    tail = page.get("/job/log/tail", handle=handle, role="trainer", replica=0).text
    assert "The log cannot be followed: local_cwd has no job" in tail
    assert tail.endswith("event: ended\ndata: the job has ended\n\n")
