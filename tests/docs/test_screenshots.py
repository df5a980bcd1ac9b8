"""The pictures of the page in the documentation: made in a real browser, of jobs that run here.

`make screenshots` (UPDATE_GOLDEN=1) writes them to docs/images.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from shunter.runner import get_runner
from tests.docs.documents import ROOT
from tests.forked_command import run_shunter
from tests.ui.real_browser import Server, browser, opened, server, shown  # noqa: F401

IMAGES = ROOT / "docs" / "images"
NAMES = ("jobs", "job", "points")
LARGEST = 60_000
TRAIN = """
import argparse
import math

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
for epoch in range(1, 31):
    loss = 2.3 * math.exp(-epoch * args.lr) + 0.02 * math.sin(epoch + args.seed) + 0.05
    print(f"epoch {epoch} loss {loss:.4f} accuracy {1 - loss / 2.4:.4f}", flush=True)
    if args.lr > 5:
        raise RuntimeError("CUDA out of memory")
"""


@pytest.fixture
def jobs(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The handles of a job that trains, of one that fails, and of a sweep, the last one first."""
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    run_shunter("run", "./train.py", "--lr", "0.2")
    run_shunter("run", "./train.py", "--lr", "10")
    run_shunter("sweep", "--wait", "./train.py", "--lr", "0.05,0.1,0.3", "--seed", "0,1")
    with get_runner() as runner:
        return [job.handle for job in runner.jobs(3)]


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:  # noqa: F811
    page, complaints = opened(browser, server, device_scale_factor=1)
    page.set_viewport_size({"width": 1100, "height": 640})
    yield page
    assert complaints == []


def picture(page: Any, name: str) -> None:
    """Take a picture; with UPDATE_GOLDEN, as that of the documentation."""
    image = Image.open(io.BytesIO(page.screenshot())).quantize(128)
    data = io.BytesIO()
    image.save(data, "PNG", optimize=True)
    assert len(data.getvalue()) <= LARGEST
    if os.environ.get("UPDATE_GOLDEN"):
        (IMAGES / f"{name}.png").write_bytes(data.getvalue())


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_page_shows_what_the_documentation_claims(
    page: Any,
    server: Server,  # noqa: F811
    jobs: list[str],
) -> None:
    sweep, _, trained = jobs
    page.goto(server.origin)
    shown(page, "#jobs")
    text = page.locator("#jobs").inner_text()
    for expected in ("--lr 0.2", "loss", "GPU memory", "SUCCEEDED", "FAILED"):
        assert expected in text
    picture(page, "jobs")

    page.goto(f"{server.origin}/job?handle={trained}")
    shown(page, ".chart >> nth=1 >> .values li")
    page.locator("text=Replicas").first.evaluate("each => scrollTo(0, each.offsetTop - 12)")  # no paths
    assert "SUCCEEDED" in page.locator("main").inner_text()
    picture(page, "job")

    page.goto(f"{server.origin}/job?handle={sweep}")
    page.click(".tabs >> text=Points")
    shown(page, ".coordinates polyline")
    assert page.locator(".points tbody tr").count() == 6
    assert "0.3" in page.locator("tr.best").inner_text()
    picture(page, "points")


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_there_and_small(name: str) -> None:
    assert 5_000 < (IMAGES / f"{name}.png").stat().st_size <= LARGEST
