"""The documentation builds as a site that loads nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

PAGES = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(PAGES)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "mkdocs.yml", place)
    shutil.copytree(ROOT / "docs", place / "docs")
    zensical = Path(sys.executable).with_name("zensical")
    if not zensical.exists():
        pytest.skip("zensical is not installed")
    command = [zensical, "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "site"


@pytest.mark.slow
def test_the_site_has_every_page(site: Path) -> None:
    for page in PAGES:
        directory = site / page.removesuffix("index.md").removesuffix(".md")
        text = (directory / "index.html").read_text()
        assert "<h1" in text, page


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r'(?:<script[^>]+src|<link[^>]+rel="stylesheet"[^>]+href|<img[^>]+src)="(https?:|//)')
    assert [path for path in site.rglob("*.html") if loaded.search(path.read_text())] == []


@pytest.mark.slow
def test_llms_txt_names_pages(site: Path) -> None:
    named = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert sorted(named) == sorted(set(PAGES) - {"index.md"})
