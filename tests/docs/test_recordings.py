"""Recordings of a terminal in the documentation show what commands print.

The image of a page, `![...](../images/NAME.svg)`, has the commands of the block that follows it.
`make screenshots` (UPDATE_GOLDEN=1) records it again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.docs.blocks import read_steps
from tests.docs.compare import Ids, differences
from tests.docs.documents import ROOT, documents
from tests.docs.recording import draw, lines_of
from tests.docs.test_commands import Session

IMAGE = re.compile(r"!\[[^\]]*\]\((?P<image>[\w./]+\.svg)\)\n\n```console\n(?P<block>.*?)\n```", re.DOTALL)
RECORDINGS = [
    pytest.param(document, match, id=Path(match["image"]).stem)
    for document in documents()
    for match in IMAGE.finditer(document.read_text())
]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("document", "match"), RECORDINGS)
def test_a_recording_is_what_commands_print(
    document: Path, match: re.Match[str], tmp_path: Path, home: Path
) -> None:
    begin = match.string.count("\n", 0, match.start("block")) + 1
    end = begin + match["block"].count("\n")
    session = Session(document, tmp_path / "user", home, in_colour=True)
    recorded: list[tuple[str, list[str]]] = []
    try:
        for step in read_steps(document):
            if step.line <= end:
                session.follow(step, None)
                if step.line >= begin:
                    recorded.append((step.text, session.printed))
    finally:
        session.close()
    picture = document.parent / match["image"]
    if os.environ.get("UPDATE_GOLDEN"):
        picture.write_text(draw(recorded))
    now = tmp_path / "now.svg"
    now.write_text(draw(recorded))
    assert not differences(lines_of(picture), lines_of(now), Ids())


def test_recordings_are_small() -> None:
    pictures = list((ROOT / "docs" / "images").glob("*.svg"))
    assert len(pictures) == len(RECORDINGS)
    assert 0 < sum(picture.stat().st_size for picture in pictures) <= 100_000
