"""What the documents point to is there: pages, headings, files, make's targets."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.blocks import read_blocks
from tests.docs.documents import ROOT, documents, name_of, readmes

LINK = re.compile(r"\[[^\]\n]+\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
IN_PROJECT = re.compile(r"(?:src|tests|docs|examples|benchmarks|toolkit|\.ci)/[\w./-]+")
OF_PACKAGE = re.compile(
    r"(?:aws_endpoint|cli|components|docker|http|image_registry|runner|schedulers|specs|system|testing|workspace)"
    r"/[\w/]+\.py"
)


def prose_of(path: Path) -> str:
    """Return a document without its blocks."""
    return re.sub(r"^(`{3,}).*?^\1$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors_of(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as hosts of Markdown make them."""
    titles = re.findall(r"^#+ (.+)$", prose_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", [*documents(), *filter(Path.exists, readmes())], ids=name_of)
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for match in LINK.finditer(prose_of(document)):
        target = match["target"]
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        page = (document.parent / name).resolve() if name else document
        if not page.exists() or (anchor and anchor not in anchors_of(page)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_files_that_are_named_exist(document: Path) -> None:
    missing = []
    for text in CODE.findall(prose_of(document)):
        if IN_PROJECT.fullmatch(text) and not (ROOT / text).exists():
            missing.append(text)
        if OF_PACKAGE.fullmatch(text) and not (ROOT / "src" / "shunter" / text).exists():
            missing.append(text)
    assert not missing


@pytest.mark.parametrize("document", [*documents(), *filter(Path.exists, readmes())], ids=name_of)
def test_targets_of_make_exist(document: Path) -> None:
    known = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"`make ([a-z ]+)`|^\$ make ([a-z]+)", document.read_text(), re.MULTILINE)
    targets = {target for pair in named for words in pair for target in words.split()}
    assert targets <= known


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_toml_parses(document: Path) -> None:
    for block in read_blocks(document):
        if block.language == "toml":
            tomllib.loads("\n".join(block.lines))


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_pages_are_in_the_index(document: Path) -> None:
    index = ROOT / "docs" / "index.md"
    if document.parent == ROOT:  # not part of the site
        assert document.name in ("README.md", "SKILL.md") or f"`{document.name}`" in index.read_text()
        return
    linked = {(index.parent / match["target"]).resolve() for match in LINK.finditer(index.read_text())}
    assert document == index or document in linked
