"""In a real browser: files, points of a sweep, charts, the cause of a failure, saved views."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from shunter.runner import get_runner
from tests.forked_command import run_shunter
from tests.ui.real_browser import Server, opened, shoot, shown
from tests.ui.test_files import PIXEL, SCRIPT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: Prints a metric that depends on its arguments, and fails where the rate is too high.
TRAIN = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--kind", default="a")
args = parser.parse_args()
for step in range(50):
    print(json.dumps({"step": step, "loss": 2 / (1 + step * args.lr), "acc": step * args.lr}), flush=True)
if args.lr > 5:
    raise RuntimeError("CUDA out of memory: <b>lr</b> of 10")
"""


@pytest.fixture
def script(tmp_path: Path, home: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def ended(script: Path, *arguments: str, component: str = "utils.python") -> str:
    """Run a job on this machine to its end; returns its handle."""
    with get_runner() as runner:
        words = ["--script", str(script), *(["--", *arguments] if arguments else [])]
        handle = runner.run_component(component, words, "local_cwd")
        runner.wait(handle)
    return handle


def test_files_are_browsed_shown_and_downloaded(
    browser: Any, server: Server, home: Path, tmp_path: Path
) -> None:
    script = tmp_path / "files.py"
    script.write_text(SCRIPT + f"open(model + '/pixel.png', 'wb').write({PIXEL!r})\n")
    handle = ended(script, component="train.script")
    page, complaints = opened(browser, server)
    page.goto(f"{server.origin}/job?handle={handle}")
    page.click(".tabs >> text=Files")
    page.click("text=model/ >> nth=0")
    shown(page, ".files .name:has-text('weights.bin')")
    shoot(page, "files")
    page.click("a:text-is('pixel.png')")
    shown(page, "img.view")
    page.wait_for_function("document.querySelector('img.view').naturalWidth === 1")
    page.click(".folders >> text=model")
    page.click("a:text-is('page.html')")
    shown(page, "pre:has-text('window.ran=1')")
    assert page.evaluate("window.ran ?? 0") == 0
    page.click(".folders >> text=model")
    with page.expect_download() as download:
        page.click("[aria-label='Download model/weights.bin']")
    assert download.value.suggested_filename == "weights.bin"
    assert Path(download.value.path()).read_bytes() == bytes(range(256)) * 10_000
    for file in ("model/image.svg", "model/page.html"):  # opened by hand, too, they are only saved
        with page.expect_download() as download:
            page.evaluate(
                "([place, file]) => { location.href = `/job/file?${new URLSearchParams({"
                "handle: new URLSearchParams(location.search).get('handle'), place, file})}` }",
                [page.input_value("select[name=place]"), file],
            )
        assert download.value.suggested_filename == file.partition("/")[2]
    with page.expect_download() as download:
        page.click("[aria-label='Download model as tar']")
    with tarfile.open(download.value.path()) as archive:
        assert len(archive.getnames()) == 6
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    boxes = [button.bounding_box() for button in page.locator(".files .button").all()]
    assert len({round(box["x"] + box["width"]) for box in boxes}) == 1  # one above the other
    assert complaints == []


def test_the_points_of_a_sweep_are_compared(browser: Any, server: Server, script: Path) -> None:
    words = ["sweep", "-s", "local_cwd", "--wait", "utils.python", "--script", str(script), "--"]
    assert run_shunter(*words, "--lr", "0.01,0.1,1", "--kind", "a,b").returncode == 0
    with get_runner() as runner:
        handle = runner.resolve_handle(None)
    page, complaints = opened(browser, server)
    shown(page, "[data-row] .arguments:has-text('6 points: lr=0.01,0.1,1 kind=a,b')")
    page.goto(f"{server.origin}/job?handle={handle}")
    shown(page, ".values li:has-text('lr=1 kind=b')")
    assert page.locator(".chart >> nth=0 >> .values li").count() == 6
    page.click(".tabs >> text=Points")
    shown(page, ".coordinates polyline")
    assert page.locator(".coordinates polyline").count() == 6
    assert page.locator(".points tbody tr").count() == 6
    best = page.locator("tr.best").inner_text()
    assert "0.04" in best  # the lowest loss: 2 / 50
    assert page.locator("tr.best .number").first.inner_text() == "1"
    shoot(page, "sweep-points")
    page.click("th >> text=acc")
    shown(page, "th[aria-sort=descending]:has-text('highest acc')")
    page.click("th >> text=highest acc")
    shown(page, "th[aria-sort=ascending]:has-text('lowest acc')")
    assert page.locator(".points tbody tr .number").first.inner_text() in ("0.01", "0.1", "1")
    page.click("tr.best a")
    shown(page, ".log .l:has-text('49')")
    assert complaints == []


def test_charts_are_drawn_as_the_user_wants(browser: Any, server: Server, script: Path) -> None:
    handle, other = ended(script, "--lr", "0.1"), ended(script, "--lr", "1")
    page, complaints = opened(browser, server)
    page.goto(f"{server.origin}/charts?handle={handle}&handle={other}")
    shown(page, ".chart >> nth=1")
    shown(page, ".chart:has-text('loss') li >> nth=1")
    loss = page.locator(".chart:has(figcaption:has-text('loss'))")
    assert "lr=1 python/0: 0.04" in loss.locator("li").nth(1).inner_text()
    shown(page, "tr.best:has-text('0.04')")
    page.click("th >> text=acc")  # another metric by which the jobs are sorted
    shown(page, "th[aria-sort=descending]:has-text('highest acc')")
    page.go_back()
    shown(page, "th[aria-sort=ascending]:has-text('lowest loss')")
    shown(page, ".chart:has-text('loss') li >> nth=1")
    assert "0.04 at 49" in loss.locator("li").nth(1).inner_text()
    loss.locator(".u-over").hover(position={"x": 2, "y": 20})  # the values under the pointer
    shown(page, ".where:has-text('step 0')")
    assert loss.locator("li").nth(1).inner_text().endswith(": 2")
    page.mouse.move(0, 0)
    page.wait_for_function("[...document.querySelectorAll('.where')].every((each) => !each.textContent)")
    with page.expect_download() as download:
        loss.locator("text=CSV").click()
    rows = list(csv.reader(Path(download.value.path()).read_text().splitlines()))
    assert [len(row) for row in rows] == [3] * 51
    assert (rows[0][0], rows[1], rows[50]) == ("step", ["0", "2", "2"], ["49", str(2 / 5.9), "0.04"])
    with page.expect_download() as download:
        loss.locator("text=PNG").click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
    page.fill("[name=show]", "lo")
    page.wait_for_function("document.querySelectorAll('.chart').length === 1")
    page.check("[name=log]")
    page.locator("[name=smooth]").fill("90")
    page.select_option("[name=by]", "elapsed")
    loss.locator("li button").first.click()
    shown(page, "[aria-pressed=false]")
    shoot(page, "charts-options")
    page.reload()  # the URL has it all
    shown(page, ".chart")
    assert page.locator(".chart").count() == 1
    assert page.is_checked("[name=log]")
    assert page.input_value("[name=by]") == "elapsed"
    page.fill("[name=show]", "")
    page.check("[name=together]")
    shown(page, ".chart:has-text('all metrics') li >> nth=3")
    assert page.locator(".chart").count() == 1
    page.fill("[name=show]", "nothing like it")
    shown(page, ".note:has-text('No metric has such a name')")
    assert complaints == []


def test_a_failure_is_explained_compared_and_repeated_with_other_arguments(
    browser: Any, server: Server, script: Path
) -> None:
    good, bad = ended(script, "--lr", "0.1"), ended(script, "--lr", "10")
    page, complaints = opened(browser, server)
    shown(page, "[data-row] >> nth=0 >> .reason:has-text('CUDA out of memory: <b>lr</b> of 10')")
    shown(page, "[data-row] >> nth=0 >> .arguments:has-text('--lr 10')")
    shown(page, "[data-row] >> nth=1 >> .values:has-text('step 49, loss 0.339, acc 4.9')")
    page.goto(f"{server.origin}/job?handle={bad}")
    shown(page, ".cause .headline:has-text('CUDA out of memory: <b>lr</b> of 10')")
    shown(page, ".cause pre:has-text('raise RuntimeError')")
    shoot(page, "job-failed")
    field = page.locator("[data-find]")
    assert field.bounding_box()["width"] > 150  # its hint is not cut off
    page.emulate_media(media="print")
    for hidden in (".top", ".tabs", ".bar >> nth=0"):
        assert not page.locator(hidden).is_visible()
    assert page.locator(".cause").is_visible()
    page.emulate_media(media="screen")
    page.click(".tabs >> text=Changes")
    page.fill("input[type=search][name=handle]", good.rpartition("/")[2])
    page.click("main button:text-is('Compare')")
    shown(page, ".pair >> text=" + good)
    shown(page, "ins:has-text('10')")
    page.go_back()
    page.fill("input[type=search][name=handle]", "no-such-job")
    page.click("main button:text-is('Compare')")
    shown(page, ".problem:has-text('no-such-job')")
    assert [text for text in complaints if "404" not in text] == []


def test_views_of_the_list_are_saved_by_the_browser(browser: Any, server: Server, script: Path) -> None:
    ended(script)
    page, complaints = opened(browser, server)
    page.goto(f"{server.origin}/?q=pyth&state=SUCCEEDED")
    page.evaluate("window.prompt = () => 'the <b>good</b> ones'")
    page.click("#save-view")
    shown(page, "#views a:text-is('the <b>good</b> ones')")
    page.uncheck("input[value=SUCCEEDED]")
    page.wait_for_url("**/?q=pyth&scheduler=")
    page.go_back()
    page.wait_for_url("**/?q=pyth&state=SUCCEEDED")
    page.wait_for_function("document.querySelector('input[value=SUCCEEDED]').checked")  # as the list is
    page.goto(server.origin)
    page.click("#views a")
    page.wait_for_url("**/?q=pyth&state=SUCCEEDED")
    assert page.is_checked("input[value=SUCCEEDED]")
    page.click("[aria-label^='Forget the view']")
    page.wait_for_function("!document.querySelector('#views a')")
    assert json.loads(page.evaluate("localStorage.getItem('shunter views')")) == {}
    assert complaints == []
