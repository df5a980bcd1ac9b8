"""The pages in a real browser: the whole path, and attacks by pages of other origins."""

from __future__ import annotations

import http.server
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

import pytest

from shunter.runner import get_runner
from shunter.runner.history import History
from shunter.specs.app import AppDef, Role
from shunter.specs.resources import Resource
from shunter.specs.serialize import to_json
from shunter.specs.status import AppState
from shunter.ui.job_page import TABS
from tests.ui.conftest import record
from tests.ui.real_browser import Server, opened, shoot, shown

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: Says a step whenever a byte comes into its FIFO, so that the test decides when it goes on.
SCRIPT = """
import json, sys
step = 0
with open(sys.argv[1], "rb", buffering=0) as pipe:
    while pipe.read(1):
        print(json.dumps({"step": step, "loss": 2.0 / (step + 1)}), flush=True)
        print(f"\\x1b[32mINFO\\x1b[0m said {step} <img src=x onerror=alert(1)>", file=sys.stderr, flush=True)
        step += 1
"""

#: Whether no chart is wider than its frame.
FITS = """() => [...document.querySelectorAll('.chart')].every(
    chart => chart.querySelector('.uplot').offsetWidth <= chart.clientWidth)"""


class Job:
    """A local job that says a step when it is asked to."""

    def __init__(self, directory: Path) -> None:
        script, self.pipe = directory / "train.py", directory / "pipe"
        script.write_text(SCRIPT)
        os.mkfifo(self.pipe)
        with get_runner() as runner:
            arguments = ["--script", str(script), "--", str(self.pipe)]
            self.handle = runner.run_component("utils.python", arguments, "local_cwd")
        self._kept_open = os.open(self.pipe, os.O_WRONLY)  # so that the script does not see its end

    def step(self, count: int = 1) -> None:
        """Ask for steps, as soon as the script, which may have been started again, listens."""
        with open(self.pipe, "wb", buffering=0) as pipe:
            pipe.write(b"x" * count)

    def state(self) -> AppState:
        with get_runner() as runner:
            status = runner.status(self.handle)
            assert status is not None
            return status.state

    def end(self) -> None:
        os.close(self._kept_open)
        with get_runner() as runner:
            runner.cancel(self.handle)
            runner.wait(self.handle)


@pytest.fixture
def job(home: Path, tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.end()


def test_a_job_is_watched_and_cancelled(browser: Any, server: Server, job: Job) -> None:
    page, complaints = opened(browser, server)
    job.step(20)
    shown(page, "[data-row] .badge.running")
    shoot(page, "jobs")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/job?handle=*")

    shown(page, ".log .l:has-text('said 19 ')")
    shown(page, "#status .badge.running")
    shown(page, ".timeline .bar-running")
    shown(page, ".chart[data-points='20']")
    job.step(5)
    shown(page, ".log .l:has-text('said 24 ')")
    shown(page, ".chart[data-points='25']")
    lines = page.locator(".log .l").all_inner_texts()
    said = [line for line in lines if line.startswith("INFO")]
    assert said == [f"INFO said {step} <img src=x onerror=alert(1)>" for step in range(25)]
    assert page.locator(".log img").count() == 0
    assert page.locator(".log .l .c2").first.inner_text() == "INFO"
    shown(page, ".chart:has-text('system/cpu_percent')")  # with the first samples; the others move
    over = page.locator(".chart .u-over").first
    place = over.bounding_box()
    over.hover(position={"x": place["width"] / 2, "y": 20})
    page.mouse.down()
    page.mouse.move(place["x"] + place["width"] / 4, place["y"] + 20, steps=3)
    page.mouse.up()
    over.hover(position={"x": 0, "y": 20})
    shown(page, ".chart .where:has-text('step 6')")  # the part is enlarged
    job.step(3)
    shown(page, ".chart[data-points='28']")
    page.mouse.move(place["x"] + 2, place["y"] + 40)
    shown(page, ".chart .where:has-text('step 6')")  # and remains so
    page.locator(".chart").first.evaluate("chart => { chart.style.width = '250px' }")
    page.wait_for_function(FITS)
    log = page.locator(".log")
    assert log.evaluate("log => log.scrollHeight - log.scrollTop - log.clientHeight") < 40
    shoot(page, "job-running")

    page.click("#cancel")
    shown(page, "#status .badge.cancelled")
    assert job.state() is AppState.CANCELLED
    shown(page, ".log .note:has-text('the job has ended')")
    assert page.locator("#cancel").is_disabled()
    shoot(page, "job-cancelled")
    page.click("#rerun")
    shown(page, "#status .badge.running")
    job.step(3)
    shown(page, ".log .l:has-text('said 2 ')")
    page.click("text=Definition")
    shown(page, "pre:has-text('train.py')")
    page.click("text=Plan")
    shown(page, "pre:has-text('# request')")
    page.keyboard.press("g")
    shown(page, "[data-row] >> nth=1")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.click("text=Charts >> nth=1")
    shown(page, ".chart li >> nth=1")
    shoot(page, "charts-overlaid")
    page.go_back()
    page.check("[data-all]")
    page.click("text=Compare")
    shown(page, ".pair a >> nth=1")
    shoot(page, "compare")
    page.goto(server.origin)
    page.check("[data-all]")
    page.click("button[value=cancel]")
    shown(page, "h1:has-text('Cancel: 2 of 2 done')")
    page.click("text=Back to the jobs")
    shown(page, "[data-row] >> nth=1 >> .badge.cancelled")
    shown(page, "[data-row] >> nth=0 >> .badge.cancelled")
    shoot(page, "jobs-cancelled")
    assert complaints == []


def test_a_selection_outlasts_a_table_that_was_asked_for_before(
    browser: Any, server: Server, job: Job
) -> None:
    page, complaints = opened(browser, server)
    shown(page, "[data-row] input:enabled")
    held: list[Any] = []
    page.route(REFRESH, lambda route: held.append(route))
    while not held:
        page.wait_for_timeout(50)
    page.check("[data-row] input")
    page.evaluate("document.getElementById('jobs').dataset.is = 'the old one'")
    page.evaluate(
        """() => new MutationObserver(() => {
            if (!document.getElementById("jobs").dataset.is)
                window.tickedAtOnce ??= document.querySelector("[data-row] input").checked;
        }).observe(document.body, { childList: true, subtree: true })"""
    )
    held[0].continue_()
    page.wait_for_function("() => !document.getElementById('jobs').dataset.is")
    assert page.is_checked("[data-row] input")
    assert page.evaluate("window.tickedAtOnce") is True
    assert complaints == []


def test_a_click_outlasts_a_part_that_is_replaced_under_it(browser: Any, server: Server, job: Job) -> None:
    page, complaints = opened(browser, server)
    page.click("[data-row] a >> nth=0")
    page.wait_for_url("**/job?handle=*")
    shown(page, "#status .badge.running")
    page.evaluate(
        """() => {
            window.arrived = 0;
            document.addEventListener("htmx:before:swap", ({ detail }) => {
                if (detail.tasks.some(({ target }) => target.id === "status")) window.arrived++;
            });
        }"""
    )
    page.hover("#cancel")
    page.mouse.down()
    page.wait_for_function("() => window.arrived", timeout=60_000)
    page.mouse.up()
    shown(page, "#status .badge.cancelled")
    assert complaints == []


#: What the table of jobs reloads itself from.
REFRESH = re.compile(r"/jobs(\?|$)")
#: Prints a step and its loss for ever.
STEPS = """
step=0
while :; do
    echo "{\\"step\\": $step, \\"loss\\": $((1000 - step))}"; echo "said $step" >&2
    step=$((step + 1)); sleep 0.2
done
"""


@pytest.mark.parametrize("scheduler", ["local_docker", "slurm"])
def test_a_job_elsewhere_is_watched_and_cancelled(
    browser: Any, home: Path, request: pytest.FixtureRequest, scheduler: str
) -> None:
    job = AppDef("steps", [Role("trainer", "", entrypoint="sh", args=["-c", STEPS], num_replicas=2)])
    (role,) = job.roles
    if scheduler == "slurm":
        request.getfixturevalue("slurm")
        role.resource = Resource(cpu=1, gpu=0, memMB=64)
    else:
        role.image = request.getfixturevalue("image")
    with get_runner() as runner:
        handle = runner.run(job, scheduler, {}, workspace=None)
        server = Server()
        try:
            page, complaints = opened(browser, server)
            page.goto(f"{server.origin}/?scheduler={scheduler}")
            shown(page, "[data-row] .badge.running")
            page.click("[data-row] a >> nth=0")
            page.wait_for_url("**/job?handle=*")
            shown(page, ".log .l:has-text('said 5')")
            seen = page.locator(".log .l").count()
            shown(page, f".log .l >> nth={seen + 4}")
            shown(page, ".timeline .bar-running >> nth=1")
            shown(page, ".chart[data-points]")
            points = int(page.locator(".chart[data-points] >> nth=0").get_attribute("data-points"))
            page.wait_for_function(
                "least => Number(document.querySelector('.chart[data-points]').dataset.points) > least",
                arg=points,
            )
            shoot(page, f"job-on-{scheduler}")
            page.click("text=Plan")
            shown(page, "pre:has-text('# request')")
            page.go_back()
            page.click("#cancel")
            shown(page, "#status .badge.cancelled")
            status = runner.wait(handle, timeout=60)
            assert status is not None
            assert status.state is AppState.CANCELLED
            page.click("#rerun")
            shown(page, "#status .badge.running")
            again = page.url.partition("handle=")[2]
            shown(page, ".log .l:has-text('said 5')")
            page.goto(f"{server.origin}/?scheduler={scheduler}")
            page.check("[data-all]")
            page.click("button[value=cancel]")
            shown(page, "h1:has-text('Cancel: 2 of 2 done')")
            ended = runner.wait(unquote(again), timeout=60)
            assert ended is not None
            assert ended.state is AppState.CANCELLED
            assert complaints == []
        finally:
            server.end()
            runner.cancel(handle)


def test_any_place_of_a_long_log_is_reached(browser: Any, server: Server, home: Path) -> None:
    with get_runner() as runner:
        script = "for i in $(seq 20000); do echo line number $i; done"
        handle = runner.run_component("utils.sh", ["sh", "-c", script], "local_cwd")
        runner.wait(handle)
    page, complaints = opened(browser, server)
    page.goto(f"{server.origin}/job?handle={handle}")
    shown(page, ".log .l:text-is('line number 20000')")
    first = int(page.locator(".log .l").first.inner_text().split()[-1])
    assert 10_000 < first < 20_000
    page.click("#earlier")
    shown(page, f".log .l:text-is('line number {first - 1}')")
    page.click("text=Beginning")
    shown(page, ".log .l:text-is('line number 1')")
    assert page.locator(".log .l:text-is('line number 20000')").count() == 0
    last = int(page.locator(".log .l").last.inner_text().split()[-1])
    page.click("#later")
    shown(page, f".log .l:text-is('line number {last + 1}')")
    numbers = [int(text.split()[-1]) for text in page.locator(".log .l").all_inner_texts()]
    assert numbers == list(range(1, numbers[-1] + 1))
    page.keyboard.press("e")
    shown(page, ".log .l:text-is('line number 20000')")
    page.keyboard.press("f")
    page.keyboard.type("number (77|78|15077)$")
    page.keyboard.press("Enter")
    shown(page, ".log .hit.here:text-is('line number 77')")
    assert page.locator(".hit").count() == 2
    page.locator("[data-find]").blur()
    page.keyboard.press("n")
    shown(page, ".log .hit.here:text-is('line number 78')")
    page.keyboard.press("n")
    shown(page, ".log .hit.here:text-is('line number 15077')")
    assert page.locator(".log .hit.here").is_visible()
    shoot(page, "log-search")
    page.keyboard.press("p")
    shown(page, ".log .hit.here:text-is('line number 78')")
    page.keyboard.press("p")
    shown(page, ".log .hit.here:text-is('line number 77')")
    page.keyboard.press("p")
    shown(page, ".note:has-text('No earlier lines match')")
    page.click("text=Find last")
    shown(page, ".log .hit.here:text-is('line number 15077')")
    page.click("#next-match")
    shown(page, ".note:has-text('No more lines match')")
    page.keyboard.press("e")
    shown(page, ".log .l:text-is('line number 20000')")
    # a page that has followed for long keeps its last lines only, and reads earlier ones again
    page.evaluate(
        """() => {
            const lines = document.getElementById("lines");
            const chunk = lines.firstElementChild;
            for (let i = 0; i < 80; i++) lines.append(chunk.cloneNode());
            lines.lastElementChild.append("the end");
            const log = lines.closest(".log");
            log.scrollTop = log.scrollHeight;
            document.dispatchEvent(new CustomEvent("htmx:before:swap", {detail: {tasks: []}}));
            document.dispatchEvent(new CustomEvent("htmx:after:swap", {detail: {ctx: {target: lines}}}));
        }"""
    )
    assert page.locator(".chunk").count() == 60
    assert page.locator(".log .l").count() == 0
    page.click("#earlier")
    shown(page, f".log .l:text-is('line number {first - 1}')")
    assert complaints == []


#: What can be operated and has no name for those who do not see it.
NAMELESS = """[...document.querySelectorAll("a, button, select, input:not([type=hidden])")]
    .filter((each) => !each.innerText?.trim() && !each.ariaLabel && !each.labels?.length)
    .map((each) => each.outerHTML)"""


def test_pages_in_the_dark_and_on_a_phone(browser: Any, server: Server, job: Job) -> None:
    job.step(30)
    history = History()
    for number in range(60):
        record(history, f"bulk-{number}")
    page, complaints = opened(browser, server, color_scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.set_viewport_size({"width": 390, "height": 800})
    for path in ("/", f"/job?handle={job.handle}"):
        page.goto(server.origin + path)
        shown(page, ".chart" if "handle" in path else "[data-row]")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate(NAMELESS) == []
        shoot(page, "phone-dark-job" if "handle" in path else "phone-dark-jobs")
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.goto(f"{server.origin}/?q=bulk-")
    page.click(".all-pages >> text=Delete")
    shown(page, "h1:has-text('Delete 60 jobs?')")
    shoot(page, "phone-confirm")
    page.click("button.danger")
    shown(page, "h1:has-text('Delete: 60 of 60 done')")
    assert complaints == []


ATTACK = """<!doctype html><meta charset=utf-8><body><script>
const target = %(target)s, handle = %(handle)s;
const form = new URLSearchParams({action: "cancel", handle});
const results = {};
async function attempt(name, call) {
  try { results[name] = await call(); } catch (error) { results[name] = "refused"; }
}
(async () => {
  for (const credentials of ["include", "omit"]) for (const mode of ["cors", "no-cors"]) {
    const how = {mode, credentials};
    await attempt(`get ${mode} ${credentials}`, async () => (await fetch(target + "/", how)).text());
    await attempt(`tail ${mode} ${credentials}`, async () => (await fetch(
      target + "/job/log/tail?replica=0&role=python&handle=" + encodeURIComponent(handle), how)).text());
    await attempt(`post ${mode} ${credentials}`, async () => (await fetch(
      target + "/jobs/act", {...how, method: "POST", body: form})).text());
  }
  await attempt("json post", async () => (await fetch(target + "/jobs/act", {method: "POST", mode: "no-cors",
    credentials: "include", headers: {"content-type": "text/plain"}, body: form.toString()})).text());
  for (const tag of ["img", "script", "iframe", "embed"]) await attempt(tag, () => new Promise((done) => {
    const element = document.createElement(tag);
    element.onload = () => {
      let seen = "";
      try { seen = element.contentDocument?.body?.innerText ?? ""; } catch {}
      done(tag === "script" || tag === "img" ? "loaded" : seen);
    };
    element.onerror = () => done("refused");
    element.src = target + (tag === "script" ? "/static/page.js" : tag === "img" ? "/static/icon.svg" : "/");
    document.body.append(element);
  }));
  const frame = document.createElement("iframe");
  frame.name = "hidden";
  document.body.append(frame);
  const posted = document.createElement("form");
  Object.assign(posted, {method: "post", action: target + "/jobs/act", target: "hidden"});
  for (const [name, value] of form) {
    const field = document.createElement("input");
    Object.assign(field, {name, value});
    posted.append(field);
  }
  document.body.append(posted);
  await new Promise((done) => { frame.onload = done; posted.submit(); });
  window.results = results;
})();
</script>"""


class Attacker(http.server.ThreadingHTTPServer):
    """Serves a page that attacks."""

    def __init__(self, page: str) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(page.encode())

            def log_message(self, *_: object) -> None:
                return

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "evil.example"])
def test_a_page_of_another_origin_gets_and_changes_nothing(
    browser: Any, server: Server, job: Job, name: str
) -> None:
    job.step()
    page, _ = opened(browser, server)
    values = {"target": json.dumps(server.origin), "handle": json.dumps(job.handle)}
    attacker = Attacker(ATTACK % values)
    try:
        evil = page.context.new_page()
        answers: dict[str, set[int]] = {"GET": set(), "POST": set()}
        evil.on(
            "response",
            lambda response: (
                response.url.startswith(server.origin)
                and answers[response.request.method].add(response.status)
            ),
        )
        evil.goto(f"http://{name}:{attacker.server_address[1]}/")
        evil.wait_for_function("window.results", timeout=60_000)
        results = evil.evaluate("window.results")
        assert len(results) == 17
        assert set(results.values()) <= {"refused", ""}
        assert answers["GET"] <= {401, 403}
        assert answers["POST"] == {403}
        # a name that leads here, too, is not ours
        answer = evil.goto(server.url.replace("127.0.0.1", "evil.example"))
        assert answer.status == 421
        # a link from there shows nothing either
        evil.goto(f"http://{name}:{attacker.server_address[1]}/")
        with evil.expect_response(lambda response: response.url == f"{server.origin}/") as found:
            evil.evaluate("target => { location.href = target }", f"{server.origin}/")
        assert found.value.status == 403
    finally:
        attacker.shutdown()
        attacker.server_close()
    assert job.state() is AppState.RUNNING
    page.reload()
    shown(page, "[data-row] .badge.running")


#: Runs in whichever context it is taken for HTML: as text, in an attribute, in a script.
HOSTILE = (
    "'\"></td></script><script>window.ran=1</script><img src=x onerror=window.ran=1><svg onload=window.ran=1>"
)
HOSTILE_SCRIPT = f"""
import json
hostile = {HOSTILE!r}
for step in range(3):
    print(json.dumps({{"step": step, "loss": 1.0, hostile: 2.0}}))
    print(hostile)
    print("\\x1b]8;;javascript:window.ran=1\\x07" + hostile + "\\x1b]8;;\\x07")
raise RuntimeError(hostile)
"""
WATCH = """window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
    window.violations.push(event.violatedDirective);
});"""


def test_names_and_lines_that_are_html_run_no_script(
    browser: Any, server: Server, home: Path, tmp_path: Path
) -> None:
    script = tmp_path / "hostile.py"
    script.write_text(HOSTILE_SCRIPT)
    with get_runner() as runner:
        handle = runner.run_component("utils.python", ["--script", str(script)], "local_cwd")
        runner.wait(handle)
    app = AppDef(
        HOSTILE, [Role(HOSTILE, image=HOSTILE, entrypoint=HOSTILE, args=[HOSTILE], env={"A": HOSTILE})]
    )
    recorded = record(
        History(), HOSTILE, "FAILED", msg=HOSTILE, argv=[HOSTILE], app=to_json(app), component=HOSTILE
    )
    page, complaints = opened(browser, server)
    page.add_init_script(WATCH)
    visited: list[tuple[str, dict[str, Any]]] = [
        ("/", {}),
        ("/", {"q": HOSTILE}),
        ("/jobs/all", {"action": "cancel", "q": HOSTILE}),
    ]
    visited += [("/charts", {"handle": handle}), ("/compare", {"handle": [handle, recorded]})]
    for each in (handle, recorded):
        visited += [("/job", {"handle": each, "tab": tab}) for tab in TABS]
    seen = ""
    for path, query in visited:
        page.goto(f"{server.origin}{path}?{urlencode(query, doseq=True)}")
        page.wait_for_load_state("load")
        if query == {"handle": handle, "tab": TABS[0]}:
            shown(page, ".log .l:has-text('RuntimeError')")
            shown(page, ".chart[data-points]")
        seen += page.locator("main").inner_text()
        assert page.evaluate("[window.ran ?? 0, window.violations]") == [0, []], (path, query)
        assert page.locator("main img, main script, main svg[onload], a[href^=javascript]").count() == 0
    assert seen.count("window.ran=1</script>") > 8  # it is shown, as text
    assert complaints == []
    # what the browser would have said
    page.evaluate("""() => {
        try { document.body.insertAdjacentHTML("beforeend", "<img src=x onerror=window.ran=1>") } catch {}
    }""")
    page.wait_for_function("window.violations.length", timeout=60_000)
    assert page.evaluate("window.ran ?? 0") == 0
